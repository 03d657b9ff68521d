package settle

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// maxLosses is how often in a row a request that was acknowledged and brought no reply is issued again at no cost. A
// service that acknowledges and answers nobody looks just like a stream that loses replies: then its deadline decides.
const maxLosses = 3

// Unanswered is a slice that was sent a while ago and is not answered in full.
type Unanswered struct {
	ID        workqueue.SliceID
	Endpoint  string
	StreamSeq int64 // place of its request in the work stream
}

// mayBeLost is true of sent slices that were sent in an epoch and may be found lost: no message of their reply was put
// aside, for then there is a reply, and they did not come to this maxLosses times in a row.
const mayBeLost = `s.stream_epoch = $2
    AND NOT EXISTS (SELECT FROM quarantine q WHERE q.run_id = s.run_id AND q.slice_id = s.id)
    AND (s.cause <> '` + string(workqueue.CauseLost) + `' OR (
        WITH RECURSIVE back AS (
            SELECT s.parent AS parent, 1 AS losses
            UNION ALL
            SELECT p.parent, b.losses + 1 FROM back b JOIN work_slice p ON p.id = b.parent
            WHERE p.cause = '` + string(workqueue.CauseLost) + `' AND b.losses < $3)
        SELECT max(losses) FROM back) < $3)`

const (
	// sentAt goes along work_slice_sent: it costs what it returns, however much was sent.
	sentAt = `
SELECT s.id, ` + sliceEndpoint + `, s.stream_seq
FROM work_slice s
WHERE (s.state = 'sent') IS TRUE AND s.stream_seq > $4 AND s.stream_seq < $5
    AND s.sent_at < tranche_now() - $1::interval AND ` + mayBeLost + `
ORDER BY s.stream_seq LIMIT $6`

	stillSent = `
SELECT s.id, ` + sliceEndpoint + `, s.stream_seq
FROM work_slice s
WHERE s.id = ANY($1) AND s.state = 'sent' AND s.stream_seq IS NOT NULL AND ` + mayBeLost
)

// Unanswered returns slices that were sent in the epoch, longer ago than that, and are not answered in full: those
// whose requests lie behind a place in the work stream and before another one, in that order.
func (s Store) Unanswered(
	ctx context.Context, epoch int64, longer time.Duration, behind, before int64, limit int,
) ([]Unanswered, error) {
	return s.unanswered(ctx, sentAt, longer, epoch, maxLosses, behind, before, limit)
}

// StillUnanswered returns those of some slices that were sent in the epoch and are not answered in full.
func (s Store) StillUnanswered(ctx context.Context, epoch int64, ids []workqueue.SliceID) ([]Unanswered, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	return s.unanswered(ctx, stillSent, ids, epoch, maxLosses)
}

func (s Store) unanswered(ctx context.Context, statement string, args ...any) (found []Unanswered, err error) {
	batch := &pgx.Batch{}
	batch.Queue(plane.PlanOnce)
	batch.Queue(statement, args...).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Unanswered])
		return err
	})
	if err := s.db.Pool.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("read what is unanswered: %w", err)
	}
	return found, nil
}

const slicesLost = heldColumns + `
WHERE s.id = ANY($1) AND s.state = 'sent' AND ` + mayBeLost + `
ORDER BY s.id FOR NO KEY UPDATE OF s SKIP LOCKED`

// ReleaseLost issues slices again that were sent in an epoch and of which neither the request nor a reply is there any
// more. One that has got its reply meanwhile is left alone. Leader work.
func (s Store) ReleaseLost(
	ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID, epoch int64,
) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	return s.releaseAsLeader(ctx, lease, slicesLost, []any{ids, epoch, maxLosses}, workqueue.CauseLost,
		workqueue.SlotError{Code: string(workqueue.CauseLost),
			Message: "the request was taken out of its stream, and no reply to it is there"})
}
