package workqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pipe is what PostgreSQL remembers of the JetStream streams: when they were made, and an epoch that grows when one of
// them was made anew. What was sent under an earlier epoch is lost and is issued again.
type Pipe struct {
	Epoch int64
	Work  time.Time // creation time of the work stream, by the clock of its server: only compared for equality
	Reply time.Time
}

// observePipe stores the streams' creation times; the epoch grows if they are not those known.
const observePipe = `
INSERT INTO pipe AS p (name, epoch, work_created, reply_created) VALUES ('pipe', 1, $1, $2)
ON CONFLICT (name) DO UPDATE
SET epoch = p.epoch + 1, work_created = excluded.work_created, reply_created = excluded.reply_created
WHERE (p.work_created, p.reply_created) IS DISTINCT FROM (excluded.work_created, excluded.reply_created)`

const readPipe = `SELECT epoch, work_created, reply_created FROM pipe WHERE name = 'pipe'`

// ObservePipe tells the store when the streams that a node sees were created, and returns what holds from then on.
// advanced says that this very call found them changed.
func (s *Store) ObservePipe(ctx context.Context, work, reply time.Time) (pipe Pipe, advanced bool, err error) {
	err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, observePipe, work.UTC().Truncate(time.Microsecond), reply.UTC().Truncate(time.Microsecond))
		if err != nil {
			return err
		}
		advanced = tag.RowsAffected() > 0
		return tx.QueryRow(ctx, readPipe).Scan(&pipe.Epoch, &pipe.Work, &pipe.Reply)
	})
	if err != nil {
		return Pipe{}, false, fmt.Errorf("observe the streams: %w", err)
	}
	return pipe, advanced, nil
}

// AdvancePipe opens a new epoch although the streams bear the same creation times: messages that the server had
// acknowledged are gone from them.
func (s *Store) AdvancePipe(ctx context.Context, from int64) error {
	_, err := s.pool.Exec(ctx, `UPDATE pipe SET epoch = epoch + 1 WHERE name = 'pipe' AND epoch = $1`, from)
	if err != nil {
		return fmt.Errorf("advance the epoch of the streams: %w", err)
	}
	return nil
}

const lastSent = `
SELECT coalesce(max(stream_seq), 0) FROM work_slice WHERE state = 'sent' AND pipe_epoch = $1`

// LastSent returns the highest place in the work stream of a slice that was sent in the epoch and is out still, or 0.
func (s *Store) LastSent(ctx context.Context, epoch int64) (seq int64, err error) {
	if err := s.pool.QueryRow(ctx, lastSent, epoch).Scan(&seq); err != nil {
		return 0, fmt.Errorf("look for the last request sent: %w", err)
	}
	return seq, nil
}
