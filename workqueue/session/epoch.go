package session

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Epoch is PostgreSQL's record of the JetStream streams: their creation times, and an epoch that grows when one is
// recreated. What was sent in an earlier epoch is lost and is reissued.
type Epoch struct {
	Epoch int64
	Created
}

// Created is the streams' creation times by their servers' clocks; they are only compared for equality.
type Created struct {
	Work, Reply time.Time
	Stage, Flow time.Time
}

// learnStreams fills in streams that an earlier version did not record: they were not lost.
const learnStreams = `
UPDATE stream_epoch SET stage_created = coalesce(stage_created, $1), flow_created = coalesce(flow_created, $2)
WHERE name = 'streams' AND (stage_created IS NULL OR flow_created IS NULL)`

// observeStreams stores the streams' creation times; the epoch grows if they changed.
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

// readSameEpoch returns a row only if the streams are unchanged, without a lock: nodes check twice a second.
const readSameEpoch = readEpoch + ` AND (work_created, reply_created, stage_created, flow_created) = ($1, $2, $3, $4)`

// ObserveStreams records the streams' creation times and returns the epoch. advanced: this call found them changed.
func (s Store) ObserveStreams(ctx context.Context, seen Created) (current Epoch, advanced bool, err error) {
	var times []any
	for _, t := range []time.Time{seen.Work, seen.Reply, seen.Stage, seen.Flow} {
		times = append(times, t.UTC().Truncate(time.Microsecond))
	}
	err = s.db.Pool.QueryRow(ctx, readSameEpoch, times...).Scan(&current.Epoch, &current.Work, &current.Reply,
		&current.Stage,
		&current.Flow)
	if !errors.Is(err, pgx.ErrNoRows) {
		return current, false, pg.Wrap(err, "observe the streams")
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
	return current, advanced, pg.Wrap(err, "observe the streams")
}

// AdvanceStreams opens a new epoch for unchanged creation times: acknowledged messages are lost.
func (s Store) AdvanceStreams(ctx context.Context, from int64) error {
	_, err := s.db.Pool.Exec(ctx, `UPDATE stream_epoch SET epoch = epoch + 1 WHERE name = 'streams' AND epoch = $1`, from)
	return pg.Wrap(err, "advance the epoch of the streams")
}

const lastSent = `
SELECT coalesce(max(stream_seq), 0) FROM work_slice WHERE state = 'sent' AND stream_epoch = $1`

// LastSent returns the highest stream position of a slice sent in the epoch and still in flight, or 0.
func (s Store) LastSent(ctx context.Context, epoch int64) (seq int64, err error) {
	err = s.db.Pool.QueryRow(ctx, lastSent, epoch).Scan(&seq)
	return seq, pg.Wrap(err, "find the last request sent")
}

// StreamFault is a stream that rejects messages although its server answers.
type StreamFault struct {
	Stream string
	Since  time.Time
	// Detail is the server's error when a test stream rejected a message, too: why there is no space. Empty: the
	// test stream accepted it, so the stream itself is broken and will be replaced.
	Detail string
}

const noteStreamFault = `
INSERT INTO stream_fault AS f (stream, detail) VALUES ($1, $2)
ON CONFLICT (stream) DO UPDATE SET detail = excluded.detail WHERE f.detail <> excluded.detail`

// NoteStreamFault records that a stream rejects messages, and why. Leader work.
func (s Store) NoteStreamFault(ctx context.Context, lease workqueue.Lease, stream, detail string) error {
	_, err := New(s.db).ExecAsLeader(ctx, lease, noteStreamFault, stream, pg.Plain(detail))
	return pg.Wrap(err, "note that stream %s takes nothing", stream)
}

// ClearStreamFault records that a stream accepts messages again. Leader work.
func (s Store) ClearStreamFault(ctx context.Context, lease workqueue.Lease, stream string) error {
	_, err := New(s.db).ExecAsLeader(ctx, lease, `DELETE FROM stream_fault WHERE stream = $1`, stream)
	return pg.Wrap(err, "note that stream %s takes messages again", stream)
}

// StreamFaults reads the streams that reject messages, oldest fault first.
const StreamFaults = `SELECT stream, since, detail FROM stream_fault ORDER BY since, stream`

// StreamFaults returns the streams that reject messages, oldest fault first.
func (s Store) StreamFaults(ctx context.Context) ([]StreamFault, error) {
	faults, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[StreamFault], StreamFaults)
	return faults, pg.Wrap(err, "read which streams take nothing")
}

// requestsWait uses work_slice_live.
const requestsWait = `
SELECT EXISTS (SELECT FROM work_slice s
    WHERE s.state IN ('claimed', 'sent') AND coalesce(s.sent_at, s.created_at) < tranche_now() - $1::interval)`

// RequestsWait reports whether any request has been in progress for longer, sent or not.
func (s Store) RequestsWait(ctx context.Context, longer time.Duration) (wait bool, err error) {
	err = s.db.Pool.QueryRow(ctx, requestsWait, longer).Scan(&wait)
	return wait, pg.Wrap(err, "find requests that wait")
}

// publishAgain scans all events, which is acceptable: streams are seldom replaced.
const publishAgain = `
UPDATE run_event SET published_at = NULL WHERE published_at > tranche_now() - $1::interval`

// PublishAgain republishes recent events, with their IDs, because their stream will be deleted. Leader work.
func (s Store) PublishAgain(ctx context.Context, lease workqueue.Lease, lately time.Duration) error {
	_, err := New(s.db).ExecAsLeader(ctx, lease, publishAgain, lately)
	return pg.Wrap(err, "have events published again")
}
