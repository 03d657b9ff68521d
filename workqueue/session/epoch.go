package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Epoch is what PostgreSQL remembers of the JetStream streams: when they were made, and an epoch that grows when one of
// them was made anew. What was sent under an earlier epoch is lost and is issued again.
type Epoch struct {
	Epoch int64
	Created
}

// Created is when the streams were made, by the clocks of their servers: the times are only compared for equality.
type Created struct {
	Work, Reply time.Time
	Stage, Flow time.Time
}

func (c Created) args() []any {
	var times []any
	for _, t := range []time.Time{c.Work, c.Reply, c.Stage, c.Flow} {
		times = append(times, t.UTC().Truncate(time.Microsecond))
	}
	return times
}

// learnStreams fills in what a version that did not know of these streams has left open: that they are seen for the
// first time does not mean that they were lost.
const learnStreams = `
UPDATE stream_epoch SET stage_created = coalesce(stage_created, $1), flow_created = coalesce(flow_created, $2)
WHERE name = 'streams' AND (stage_created IS NULL OR flow_created IS NULL)`

// observeStreams stores the streams' creation times; the epoch grows if they are not those known.
const observeStreams = `
INSERT INTO stream_epoch AS p (name, epoch, work_created, reply_created, stage_created, flow_created)
VALUES ('streams', 1, $1, $2, $3, $4)
ON CONFLICT (name) DO UPDATE
SET epoch = p.epoch + 1, work_created = excluded.work_created, reply_created = excluded.reply_created,
    stage_created = excluded.stage_created, flow_created = excluded.flow_created
WHERE (p.work_created, p.reply_created, p.stage_created, p.flow_created) IS DISTINCT FROM
    (excluded.work_created, excluded.reply_created, excluded.stage_created, excluded.flow_created)`

const readEpoch = `
SELECT epoch, work_created, reply_created, stage_created, flow_created FROM stream_epoch WHERE name = 'streams'`

// readSameEpoch finds it only if the streams are those known, and locks nothing: every node looks twice a second.
const readSameEpoch = readEpoch + ` AND (work_created, reply_created, stage_created, flow_created) = ($1, $2, $3, $4)`

// ObserveStreams tells the store when the streams that a node sees were created, and returns what holds from then on.
// advanced says that this very call found them changed.
func (s Store) ObserveStreams(ctx context.Context, seen Created) (current Epoch, advanced bool, err error) {
	times := seen.args()
	err = s.db.Pool.QueryRow(ctx, readSameEpoch, times...).Scan(&current.Epoch, &current.Work, &current.Reply,
		&current.Stage,
		&current.Flow)
	if !errors.Is(err, pgx.ErrNoRows) {
		return current, false, wrapObserve(err)
	}
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(learnStreams, times[2:]...)
		batch.Queue(observeStreams, times...).Exec(func(tag pgconn.CommandTag) error {
			advanced = tag.RowsAffected() > 0
			return nil
		})
		batch.Queue(readEpoch).QueryRow(func(row pgx.Row) error {
			return row.Scan(&current.Epoch, &current.Work, &current.Reply, &current.Stage, &current.Flow)
		})
		return tx.SendBatch(ctx, batch).Close()
	})
	return current, advanced, wrapObserve(err)
}

func wrapObserve(err error) error {
	if err != nil {
		return fmt.Errorf("observe the streams: %w", err)
	}
	return nil
}

// AdvanceStreams opens a new epoch although the streams bear the same creation times: messages that the server had
// acknowledged are gone from them.
func (s Store) AdvanceStreams(ctx context.Context, from int64) error {
	_, err := s.db.Pool.Exec(ctx, `UPDATE stream_epoch SET epoch = epoch + 1 WHERE name = 'streams' AND epoch = $1`, from)
	if err != nil {
		return fmt.Errorf("advance the epoch of the streams: %w", err)
	}
	return nil
}

const lastSent = `
SELECT coalesce(max(stream_seq), 0) FROM work_slice WHERE state = 'sent' AND stream_epoch = $1`

// LastSent returns the highest place in the work stream of a slice that was sent in the epoch and is out still, or 0.
func (s Store) LastSent(ctx context.Context, epoch int64) (seq int64, err error) {
	if err := s.db.Pool.QueryRow(ctx, lastSent, epoch).Scan(&seq); err != nil {
		return 0, fmt.Errorf("look for the last request sent: %w", err)
	}
	return seq, nil
}
