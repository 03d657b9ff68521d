package orchestrator

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
)

// lead tries for the lease and, while it has it, sweeps. On a clean stop it resigns.
func (n *Node) lead(ctx context.Context) {
	tick := time.NewTicker(n.cfg.LeaseTTL / 4)
	defer tick.Stop()
	var lease workqueue.Lease
	for {
		lease = n.leadOnce(ctx, lease)
		held := lease
		n.lease.Store(&held)
		n.leading.Store(lease.Epoch != 0)
		n.clearUncleared(ctx)
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

// sweep issues again what cannot come to an end by itself. What needs only PostgreSQL comes first.
func (n *Node) sweep(ctx context.Context, lease workqueue.Lease) error {
	// First: what they have locked would hold up everything after it.
	mute, err := n.store.EndMuteClients(ctx)
	if err != nil {
		return err
	}
	if mute > 0 {
		n.log.Warn("ended transactions whose process has stopped in the middle of them", zap.Int("transactions", mute))
	}
	dead, err := n.store.ReleaseDeadSessions(ctx, lease)
	if err != nil {
		return err
	}
	lost, err := n.store.ReleaseLostPipe(ctx, lease)
	if err != nil {
		return err
	}
	cleared, err := n.store.ClearAbandonedLoads(ctx, lease)
	if err != nil {
		return err
	}
	if err := n.sweepWatched(ctx); err != nil {
		return err
	}
	if err := n.sweepUnsealed(ctx, lease); err != nil {
		return err
	}
	if _, err := n.store.SweepRequests(ctx); err != nil {
		return err
	}
	late, err := n.sweepOverdue(ctx, lease)
	if err != nil {
		return err
	}
	signal(n.publish) // events that a dead node left behind
	signal(n.letters) // and letters
	n.stats.released.Add(int64(dead + lost))
	if dead+lost+late+len(cleared) > 0 {
		n.log.Info("swept", zap.Int("dead_session", dead), zap.Int("lost_stream", lost), zap.Int("overdue", late),
			zap.Int("abandoned_loads", len(cleared)))
		n.wakeOthers()
	}
	return nil
}
