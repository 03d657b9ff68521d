package orchestrator

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	// overdueBatch bounds the slices that one sweep deals with.
	overdueBatch = 500
	// lookups bounds the requests that one sweep looks for in the stream, one by one.
	lookups = 20
)

// sweepOverdue deals with slices past their deadline. The time of a slice counts from when its request was handed to a
// service: one that still lies in the stream waits for its endpoint, not for its items, and gets a new deadline. One
// whose service did not answer in time counts as a failed attempt, and its request is taken out of the stream so that
// nobody works on it in vain. What cannot be told now, because JetStream does not answer, is left to the next sweep.
func (n *Node) sweepOverdue(ctx context.Context, lease workqueue.Lease) (int, error) {
	if err := n.noteHandedOut(ctx, lease); err != nil {
		return 0, err
	}
	overdue, err := n.store.OverdueSlices(ctx, overdueBatch)
	if err != nil || len(overdue) == 0 {
		return 0, err
	}
	s := n.sortOverdue(ctx, overdue)
	n.stats.extended.Add(int64(len(s.waiting)))
	if err := n.store.Extend(ctx, lease, s.waiting); err != nil {
		return 0, err
	}
	reissued, err := n.store.ReleaseUnsent(ctx, lease, s.gone)
	if err != nil {
		return 0, err
	}
	late, err := n.store.Expire(ctx, lease, s.expired)
	if err != nil {
		return reissued, err
	}
	n.stats.expired.Add(int64(late))
	n.removeRequests(ctx, s.requests)
	return reissued + late, nil
}

// noteHandedOut asks JetStream how far the services of each endpoint with waiting requests have come.
func (n *Node) noteHandedOut(ctx context.Context, lease workqueue.Lease) error {
	names, err := n.store.UnhandedEndpoints(ctx)
	if err != nil {
		return err
	}
	epoch, _ := n.pipe.now()
	for _, name := range names {
		consumer, err := n.js.Consumer(ctx, endpoints.StreamWork, endpoints.ConsumerName(name))
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			n.endpoints.forget(name) // somebody deleted it; whoever publishes next makes it anew
			_, err = n.ensureEndpoint(ctx, name)
		}
		if err != nil {
			n.log.Debug("ask how far an endpoint is", zap.String("endpoint", name), zap.Error(err))
			continue
		}
		if consumer == nil {
			continue
		}
		if err := endpoints.MendConsumer(ctx, n.js, consumer); err != nil {
			n.log.Warn("a consumer is not as it should be", zap.String("endpoint", name), zap.Error(err))
		}
		upTo := consumer.CachedInfo().Delivered.Stream
		if upTo == 0 {
			continue
		}
		if err := n.store.HandedOut(ctx, lease, name, upTo, epoch); err != nil {
			return err
		}
	}
	return nil
}

// sorted says what becomes of overdue slices.
type sorted struct {
	gone     []workqueue.SliceID // never in the stream, or taken out of it by somebody: issued again
	waiting  []workqueue.SliceID // in the stream, in nobody's hands
	expired  []workqueue.SliceID
	requests []workqueue.Sent // of the expired ones
}

func (n *Node) sortOverdue(ctx context.Context, overdue []workqueue.Overdue) sorted {
	var s sorted
	look := n.lookForRequests(ctx)
	for _, o := range overdue {
		switch {
		case o.StreamSeq == 0:
			s.gone = append(s.gone, o.ID)
		case o.Handed:
			s.expired = append(s.expired, o.ID)
			s.requests = append(s.requests, workqueue.Sent{ID: o.ID, StreamSeq: o.StreamSeq, PipeEpoch: o.PipeEpoch})
		default:
			switch look(o) {
			case there:
				s.waiting = append(s.waiting, o.ID)
			case gone:
				s.gone = append(s.gone, o.ID)
			case unknown:
			}
		}
	}
	return s
}
