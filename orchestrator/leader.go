package orchestrator

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/workqueue"
)

// overdueBatch bounds the slices that one sweep expires.
const overdueBatch = 500

// lead tries for the lease and, while it has it, sweeps. On a clean stop it resigns.
func (n *Node) lead(ctx context.Context) {
	tick := time.NewTicker(n.cfg.LeaseTTL / 4)
	defer tick.Stop()
	var lease workqueue.Lease
	for {
		lease = n.leadOnce(ctx, lease)
		select {
		case <-ctx.Done():
			n.resign(ctx, lease)
			return
		case <-tick.C:
		case <-n.sweeps:
		}
	}
}

// leadOnce prolongs the lease and sweeps. Without the lease it returns the zero Lease.
func (n *Node) leadOnce(ctx context.Context, had workqueue.Lease) workqueue.Lease {
	timed, cancel := context.WithTimeout(ctx, n.cfg.LeaseTTL)
	defer cancel()
	lease, err := n.store.Lead(timed, n.Session(), n.cfg.LeaseTTL)
	switch {
	case errors.Is(err, workqueue.ErrNotLeader):
		return workqueue.Lease{}
	case err != nil:
		if ctx.Err() == nil {
			n.log.Warn("lead", zap.Error(err))
		}
		return workqueue.Lease{}
	}
	if had != lease {
		n.log.Info("this node leads", zap.Int64("epoch", lease.Epoch))
	}
	if err := n.sweep(timed, lease); err != nil && ctx.Err() == nil && !errors.Is(err, workqueue.ErrNotLeader) {
		n.log.Warn("sweep", zap.Error(err))
	}
	return lease
}

func (n *Node) resign(ctx context.Context, lease workqueue.Lease) {
	if lease.Epoch == 0 {
		return
	}
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := n.store.Resign(timed, lease); err != nil {
		n.log.Warn("resign; the lease runs out by itself", zap.Error(err))
	}
}

// sweep issues again what cannot come to an end by itself.
func (n *Node) sweep(ctx context.Context, lease workqueue.Lease) error {
	dead, err := n.store.ReleaseDeadSessions(ctx, lease)
	if err != nil {
		return err
	}
	lost, err := n.store.ReleaseLostPipe(ctx, lease)
	if err != nil {
		return err
	}
	late, err := n.sweepOverdue(ctx, lease)
	if err != nil {
		return err
	}
	cleared, err := n.store.ClearAbandonedLoads(ctx, lease)
	if err != nil {
		return err
	}
	signal(n.publish) // events that a dead node left behind
	n.stats.released.Add(int64(dead + lost))
	if dead+lost+late+len(cleared) > 0 {
		n.log.Info("swept", zap.Int("dead_session", dead), zap.Int("lost_stream", lost), zap.Int("overdue", late),
			zap.Int("abandoned_loads", len(cleared)))
		n.wakeOthers()
	}
	return nil
}

// sweepOverdue deals with slices past their deadline. One whose request no service has been handed yet waits for its
// endpoint, not for its items, and gets a new deadline; the others count as failed attempts, and their requests are
// taken out of the stream so that nobody works on them in vain.
func (n *Node) sweepOverdue(ctx context.Context, lease workqueue.Lease) (int, error) {
	overdue, err := n.store.OverdueSlices(ctx, overdueBatch)
	if err != nil || len(overdue) == 0 {
		return 0, err
	}
	var unsent, waiting, expired []workqueue.SliceID
	var requests []workqueue.Sent
	handed := n.handedOut(ctx, overdue)
	epoch, _ := n.pipe.now()
	for _, o := range overdue {
		upTo, known := handed[o.Endpoint]
		switch {
		case o.StreamSeq == 0:
			unsent = append(unsent, o.ID)
		case known && o.PipeEpoch == epoch && uint64(o.StreamSeq) > upTo && n.stillThere(ctx, o):
			waiting = append(waiting, o.ID)
		default:
			expired = append(expired, o.ID)
			requests = append(requests, workqueue.Sent{ID: o.ID, StreamSeq: o.StreamSeq, PipeEpoch: o.PipeEpoch})
		}
	}
	if len(waiting) > 0 {
		n.stats.extended.Add(int64(len(waiting)))
		if err := n.store.Extend(ctx, lease, waiting); err != nil {
			return 0, err
		}
	}
	reissued, err := n.store.ReleaseUnsent(ctx, lease, unsent)
	if err != nil {
		return 0, err
	}
	late, err := n.store.Expire(ctx, lease, expired)
	if err != nil {
		return reissued, err
	}
	n.stats.expired.Add(int64(late))
	n.removeRequests(ctx, requests)
	return reissued + late, nil
}

// handedOut returns, for each endpoint, the place in the work stream up to which requests were handed to services.
func (n *Node) handedOut(ctx context.Context, overdue []workqueue.Overdue) map[string]uint64 {
	upTo := map[string]uint64{}
	for _, o := range overdue {
		if _, known := upTo[o.Endpoint]; known {
			continue
		}
		consumer, err := n.js.Consumer(ctx, endpoints.StreamWork, endpoints.ConsumerName(o.Endpoint))
		if err != nil {
			n.log.Debug("ask how far an endpoint is", zap.String("endpoint", o.Endpoint), zap.Error(err))
			continue
		}
		upTo[o.Endpoint] = consumer.CachedInfo().Delivered.Stream
	}
	return upTo
}
