package orchestrator

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/request"
	"github.com/tranchehq/tranche/workqueue/session"
)

// swept counts what a sweep found to do.
type swept struct{ dead, lost, standing, late int }

// sweeping is the duty that sweeps, at every beat of the lease.
func (n *Node) sweeping(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
	var s swept
	err := n.sweep(ctx, lease, &s)
	signal(n.publish)  // events that a dead node left behind
	signal(n.requeued) // and letters
	n.stats.released.Add(int64(s.dead + s.lost))
	if s.dead+s.lost+s.late+s.standing > 0 {
		n.log.Info("swept", zap.Int("dead_session", s.dead), zap.Int("lost_stream", s.lost), zap.Int("overdue", s.late),
			zap.Int("standing_lines", s.standing))
		n.wakeOthers()
	}
	return 0, err
}

// endingStalled is the duty that ends transactions of processes which have stopped in the middle of them, at every beat
// of the lease. What they have locked holds up parts of a sweep, and so would hold up their end.
func (n *Node) endingStalled(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
	timed, cancel := context.WithTimeout(ctx, n.cfg.LeaseTTL)
	defer cancel()
	stalled, err := session.New(n.store).EndStalledClients(timed, lease)
	if stalled > 0 {
		n.log.Warn("ended transactions whose process has stopped in the middle of them", zap.Int("transactions", stalled))
	}
	return 0, err
}

// sweep issues again what cannot come to an end by itself. Each part has a time of its own, the life of a lease, and
// one that fails or takes all of it keeps no other from its turn; what it did not get done is left to the next sweep.
// Each write checks the lease, or stands in itself for what it changes being so: see the methods.
func (n *Node) sweep(ctx context.Context, lease workqueue.Lease, s *swept) error {
	count := func(into *int, part func(context.Context, workqueue.Lease) (int, error)) func(context.Context) error {
		return func(ctx context.Context) (err error) {
			*into, err = part(ctx, lease)
			return err
		}
	}
	var failed error
	for _, part := range []func(context.Context) error{
		count(&s.dead, n.settling.ReleaseDeadSessions),
		count(&s.lost, n.settling.ReleaseLostStreams),
		count(&s.standing, n.sweepLines),
		n.sweepHolds,
		n.sweepWatched,
		func(ctx context.Context) error { return n.sweepUnsealed(ctx, lease) },
		func(ctx context.Context) error {
			_, err := request.New(n.store).SweepRequests(ctx, lease)
			return err
		},
		// What asks NATS comes last: when that is silent, it takes all of its time.
		func(ctx context.Context) error { return n.noteHandedOut(ctx, lease) },
		count(&s.late, n.sweepOverdue),
	} {
		timed, cancel := context.WithTimeout(ctx, n.cfg.LeaseTTL)
		err := part(timed)
		cancel()
		failed = errors.Join(failed, err)
		if ctx.Err() != nil || errors.Is(err, workqueue.ErrNotLeader) {
			break
		}
	}
	return failed
}
