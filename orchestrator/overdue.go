package orchestrator

import (
	"context"
	"errors"
	"time"

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
	overdue, err := n.store.OverdueSlices(ctx, overdueBatch)
	if err != nil || len(overdue) == 0 {
		return 0, err
	}
	asking, cancel := context.WithTimeout(ctx, n.cfg.LeaseTTL/2) // the rest is for what is known without JetStream
	s := n.sortOverdue(asking, overdue)
	cancel()
	n.stats.extended.Add(int64(len(s.waiting)))
	extended := n.store.Extend(ctx, lease, s.waiting)
	reissued, unsent := n.store.ReleaseUnsent(ctx, lease, s.gone)
	late, expired := n.store.Expire(ctx, lease, s.expired)
	n.stats.expired.Add(int64(late))
	if expired == nil {
		n.removeRequests(ctx, s.requests)
	}
	return reissued + late, errors.Join(extended, unsent, expired)
}

// lookupPatience bounds the wait for what JetStream says of one endpoint.
const lookupPatience = time.Second

// noteHandedOut asks JetStream how far the services of each endpoint with waiting requests have come. When the time
// does not do for all of them, it is others that are asked the next time.
func (n *Node) noteHandedOut(ctx context.Context, lease workqueue.Lease) (failed error) {
	names, err := n.store.UnhandedEndpoints(ctx)
	if err != nil {
		return err
	}
	shuffle(names)
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		upTo, epoch := n.handedOut(ctx, name)
		if upTo == 0 {
			continue
		}
		err := n.store.HandedOut(ctx, lease, name, upTo, epoch)
		if errors.Is(err, workqueue.ErrNotLeader) {
			return err
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// handedOut asks how far the services of an endpoint have come in the work stream, and in which epoch of it: up to 0
// when that is not known.
func (n *Node) handedOut(ctx context.Context, name string) (upTo uint64, epoch int64) {
	epoch, _ = n.pipe.now()
	timed, cancel := context.WithTimeout(ctx, lookupPatience)
	consumer, err := n.js.Consumer(timed, endpoints.StreamWork, endpoints.ConsumerName(name))
	cancel()
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		n.endpoints.forget(name) // somebody deleted it; whoever publishes next makes it anew
		_, err = n.ensureEndpoint(ctx, name)
	}
	if err != nil {
		n.log.Debug("ask how far an endpoint is", zap.String("endpoint", name), zap.Error(err))
	}
	if err != nil || consumer == nil {
		return 0, epoch
	}
	if err := endpoints.MendConsumer(ctx, n.js, consumer); err != nil {
		n.log.Warn("a consumer is not as it should be", zap.String("endpoint", name), zap.Error(err))
	}
	return consumer.CachedInfo().Delivered.Stream, epoch
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
