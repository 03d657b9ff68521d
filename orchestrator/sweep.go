package orchestrator

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
)

// sweeping is the duty that sweeps, at every beat of the lease. What it does not get done within the life of a lease is
// left to the next one.
func (n *Node) sweeping(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
	timed, cancel := context.WithTimeout(ctx, n.cfg.LeaseTTL)
	defer cancel()
	return 0, n.sweep(timed, lease)
}

// sweep issues again what cannot come to an end by itself. What needs only PostgreSQL comes first. Each write checks
// the lease, or stands in itself for what it changes being so: see the methods.
func (n *Node) sweep(ctx context.Context, lease workqueue.Lease) error {
	// First: what they have locked would hold up everything after it.
	mute, err := n.store.EndMuteClients(ctx, lease)
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
	if _, err := n.store.SweepRequests(ctx, lease); err != nil {
		return err
	}
	late, err := n.sweepOverdue(ctx, lease)
	if err != nil {
		return err
	}
	standing, err := n.sweepLines(ctx, lease)
	if err != nil {
		return err
	}
	signal(n.publish) // events that a dead node left behind
	signal(n.letters) // and letters
	n.stats.released.Add(int64(dead + lost))
	if dead+lost+late+standing+len(cleared) > 0 {
		n.log.Info("swept", zap.Int("dead_session", dead), zap.Int("lost_stream", lost), zap.Int("overdue", late),
			zap.Int("abandoned_loads", len(cleared)), zap.Int("standing_lines", standing))
		n.wakeOthers()
	}
	return nil
}
