package sweep

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// overdueBatch bounds the slices that one sweep deals with.
const overdueBatch = 500

// sweepOverdue deals with slices past their deadline. The time of a slice counts from when its request was handed to a
// service: one that still lies in the stream waits for its endpoint, not for its items, and gets a new deadline. Of one
// that was acknowledged the reply was lost. One that a service keeps without an answer counts as a failed attempt, if
// there is reason to blame its items ([settle.Store.Blamed]); its request is taken out of the stream so that no one
// works on it in vain. While JetStream is silent its time is over anyway, at no cost. What else cannot be told
// now is left to the next sweep.
func (w *Sweeper) sweepOverdue(ctx context.Context, lease workqueue.Lease) (int, error) {
	overdue, err := w.node.Settling.OverdueSlices(ctx, overdueBatch)
	if err != nil || len(overdue) == 0 {
		return 0, err
	}
	asking, cancel := context.WithTimeout(ctx, w.cfg.LeaseTTL/2) // the rest is for what is known without JetStream
	s := w.sortOverdue(asking, overdue)
	cancel()
	w.node.Stats.Extended.Add(int64(len(s.waiting)))
	extended := w.node.Settling.Extend(ctx, lease, s.waiting)
	reissued, unsent := w.node.Settling.ReleaseUnsent(ctx, lease, s.gone)
	answered, lost := w.node.Settling.ReleaseAcknowledged(ctx, lease, s.lost)
	late, expired := w.expire(ctx, lease, &s)
	return reissued + answered + late, errors.Join(extended, unsent, lost, expired)
}

// expire ends slices whose services kept silent.
func (w *Sweeper) expire(ctx context.Context, lease workqueue.Lease, s *sorted) (int, error) {
	blamed, err := w.node.Settling.Blamed(ctx, s.silent, s.doubted)
	if err != nil {
		return 0, err
	}
	at := s.spent
	var excused []workqueue.SliceID
	for _, id := range s.silent {
		if blamed[id] {
			at = append(at, id)
		} else {
			excused = append(excused, id)
		}
	}
	late, failed := w.node.Settling.Expire(ctx, lease, at)
	passed, again := w.node.Settling.ExpireWithoutPenalty(ctx, lease, excused)
	w.node.Stats.Expired.Add(int64(late + passed))
	if failed == nil && again == nil {
		core.RemoveRequests(ctx, w.node, s.requests)
	}
	return late + passed, errors.Join(failed, again)
}

// handedAgain is when JetStream is asked again about many endpoints of which none had moved. With the time between two
// sweeps it is well within what [settle.Overdue] tells of HandedFor.
const handedAgain = 3 * time.Second

// noteHandedOut asks JetStream how far the services of each endpoint with waiting requests have come.
func (w *Sweeper) noteHandedOut(ctx context.Context, lease workqueue.Lease) error {
	if time.Since(w.unmoved) < handedAgain {
		return nil
	}
	waiting, err := w.node.Settling.Undelivered(ctx)
	if err != nil || len(waiting) == 0 {
		return err
	}
	names := make([]string, len(waiting))
	for i, u := range waiting {
		names[i] = u.Endpoint
	}
	epoch, _ := w.streams.Now()
	queues := w.cfg.Queues(ctx, names)
	var failed error
	var at []settle.Handed
	for _, u := range waiting {
		queue, known := queues[u.Endpoint]
		if !known {
			continue
		}
		if queue == nil {
			w.endpoints.Forget(u.Endpoint) // someone deleted it; whoever publishes next makes it again
			_, err := w.endpoints.Ensure(ctx, u.Endpoint)
			failed = errors.Join(failed, err)
			continue
		}
		if err := stream.MendConsumer(ctx, w.node.JS, queue); err != nil {
			w.node.Log.Warn("a consumer is not as it should be", zap.String("endpoint", u.Endpoint), zap.Error(err))
		}
		if u.Epoch == epoch && queue.Delivered.Stream >= uint64(u.First) {
			at = append(at, settle.Handed{Endpoint: u.Endpoint, UpTo: int64(queue.Delivered.Stream)})
		}
	}
	if len(at) == 0 && failed == nil && len(names) > w.cfg.FewQueues {
		w.unmoved = time.Now()
	}
	return errors.Join(failed, w.node.Settling.HandedOut(ctx, lease, at, epoch))
}

// sorted says what becomes of overdue slices.
type sorted struct {
	gone     []workqueue.SliceID // never in the stream, or taken out of it by someone: reissued
	waiting  []workqueue.SliceID // in the stream, in no one's hands
	lost     []workqueue.SliceID // acknowledged by a service: its reply was lost
	spent    []workqueue.SliceID // also, and too often
	silent   []workqueue.SliceID // in a service's hands
	doubted  map[workqueue.SliceID]bool
	requests []workqueue.Sent // of the silent ones
}

func (w *Sweeper) sortOverdue(ctx context.Context, overdue []settle.Overdue) sorted {
	s := sorted{doubted: map[workqueue.SliceID]bool{}}
	looking := core.NewRequestLook(ctx, w.node)
	well := w.streams.WellFor()
	for _, o := range overdue {
		if o.StreamSeq == 0 {
			s.gone = append(s.gone, o.ID)
			continue
		}
		switch found := looking.Request(ctx, o); {
		case found == core.RequestUnknown && o.Handed && looking.Stream == nil:
			// Whatever became of it, its time is over; and no one is to blame while JetStream is silent.
			s.silent = append(s.silent, o.ID)
			s.doubted[o.ID] = true
		case found == core.RequestUnknown:
		case !o.Handed && found == core.RequestThere:
			s.waiting = append(s.waiting, o.ID)
		case !o.Handed:
			s.gone = append(s.gone, o.ID)
		case found == core.RequestThere:
			s.silent = append(s.silent, o.ID)
			s.doubted[o.ID] = well <= o.HandedFor
			s.requests = append(s.requests, workqueue.Sent{ID: o.ID, StreamSeq: o.StreamSeq, StreamsEpoch: o.StreamsEpoch})
		case o.Spent:
			s.spent = append(s.spent, o.ID)
		default:
			s.lost = append(s.lost, o.ID)
		}
	}
	return s
}
