package settle

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// A service that is silent beyond a slice's deadline may hang on an item; or its answer was lost, it was cut off, or
// NATS or the nodes were away. Only the first is the item's fault, and from one silence the two cannot be told. What
// tells them is that the services of the endpoint went on to answer others; see [Store.Blamed].

// silent is the error of a slice that nobody answered in time.
func silent() workqueue.SlotError {
	return workqueue.SlotError{Code: "deadline", Message: "no reply came before the deadline", Retry: true}
}

// sentTogether is how much earlier than another a request may have been sent to count as sent at the same time: marks
// of what was sent together are written in several transactions.
const sentTogether = time.Second

// othersAnswered goes by work_slice_ended. What a node gave up in the place of services was not answered. A reply may
// come before its request is marked as sent: then the slice's making says when that was, at the earliest.
const othersAnswered = `
SELECT s.id, bit_count(s.mask) = 1, bit_count(s.mask) = 1 AND s.cause = 'deadline' OR EXISTS (
    SELECT FROM work_slice o WHERE o.endpoint = s.endpoint AND o.ended_at > s.sent_at - $2::interval
        AND o.state = 'recorded' AND o.error_code IS DISTINCT FROM $3 AND ` + plane.AskedAt +
	` >= s.sent_at - $2::interval)
FROM work_slice s WHERE s.id = ANY ($1)`

// Blamed returns those of some slices, whose requests have been in a service's hands since before their deadline
// passed, of which the silence is held against the items: since they were sent, the endpoint's services answered others
// that were sent at the same time or later; or they did so when the item stood alone the time before. doubted are those
// that this says nothing of, say because JetStream was away in between.
//
// Nothing goes on for ever: an item that stands alone, and has done so before [patientProbes] silences already, is
// blamed for the next one whatever its services did for others; there may be no others.
func (s Store) Blamed(
	ctx context.Context, overdue []workqueue.SliceID, doubted map[workqueue.SliceID]bool,
) (map[workqueue.SliceID]bool, error) {
	blamed := map[workqueue.SliceID]bool{}
	if len(overdue) == 0 {
		return blamed, nil
	}
	var lone []workqueue.SliceID
	rows := pg.Rows(ctx, s.db.Pool, othersAnswered, overdue, sentTogether, workqueue.CodeDeliveries)
	var id workqueue.SliceID
	var alone, answered bool
	_, err := pgx.ForEachRow(rows, []any{&id, &alone, &answered}, func() error {
		if alone {
			lone = append(lone, id)
		}
		blamed[id] = answered && !doubted[id]
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look what services answered beside %d overdue slices: %w", len(overdue), err)
	}
	known, err := pace.Blames(ctx, s.db.Pool, lone)
	for id, b := range known {
		blamed[id] = blamed[id] || b.Lone >= pace.PatientProbes
	}
	return blamed, err
}

// Expire ends overdue slices and hands their bits on, as a failure of the items. Leader work.
func (s Store) Expire(ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID) (int, error) {
	return s.expire(ctx, lease, ids, workqueue.CauseDeadline, silent())
}

// Excuse ends overdue slices whose silence nothing says to be their items' fault. A chunk is tried again whole, and
// halved when that was done before; what stands alone is issued again, and nobody loses an attempt. Leader work.
func (s Store) Excuse(ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID) (int, error) {
	return s.expire(ctx, lease, ids, workqueue.CauseSilence, silent())
}

// ReleaseUnsent issues overdue slices again whose requests are not in the stream and in nobody's hands: their items are
// not to blame. Leader work.
func (s Store) ReleaseUnsent(ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID) (int, error) {
	return s.expire(ctx, lease, ids, workqueue.CauseStreams, workqueue.SlotError{Code: "unsent",
		Message: "the request was not in the stream at the deadline"})
}

// ReleaseAcknowledged issues overdue slices again that a service had taken, and acknowledged: its answer was lost on
// the way, and the items are not to blame. Leader work.
func (s Store) ReleaseAcknowledged(ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID) (int, error) {
	return s.expire(ctx, lease, ids, workqueue.CauseStreams, workqueue.SlotError{Code: "lost",
		Message: "a service acknowledged the request, but no reply came before the deadline"})
}

func (s Store) expire(ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID, cause workqueue.Cause,
	e workqueue.SlotError,
) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	return s.releaseAsLeader(ctx, lease, SlicesOverdue, []any{ids}, cause, e)
}
