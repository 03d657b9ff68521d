package sweep

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
)

// swept counts what a sweep found to do.
type swept struct{ dead, lost, standing, late int }

// Sweeping is the duty that sweeps, at every beat of the lease.
func (w *Sweeper) Sweeping(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
	var s swept
	err := w.sweep(ctx, lease, &s)
	w.node.PublishEvents() // events that a dead node left behind
	w.letters.Resend()     // and letters
	w.node.Stats.Released.Add(int64(s.dead + s.lost))
	if s.dead+s.lost+s.late+s.standing > 0 {
		w.node.Log.Info("swept", zap.Int("dead_session", s.dead), zap.Int("lost_stream", s.lost), zap.Int("overdue", s.late),
			zap.Int("standing_lines", s.standing))
		w.node.WakeOthers()
	}
	return 0, err
}

// EndingStalled is the duty that ends transactions of processes which have stopped in the middle of them, at every beat
// of the lease. What they have locked holds up parts of a sweep, and so would hold up their end.
func (w *Sweeper) EndingStalled(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
	timed, cancel := context.WithTimeout(ctx, w.cfg.LeaseTTL)
	defer cancel()
	stalled, err := session.New(w.node.Store).EndStalledClients(timed, lease)
	if stalled > 0 {
		w.node.Log.Warn("ended transactions whose process has stopped in the middle of them",
			zap.Int("transactions", stalled))
	}
	return 0, err
}

// sweep issues again what cannot come to an end by itself. Each part has a time of its own, the life of a lease, and
// one that fails or takes all of it keeps no other from its turn; what it did not get done is left to the next sweep.
// Each write checks the lease, or stands in itself for what it changes being so: see the methods.
func (w *Sweeper) sweep(ctx context.Context, lease workqueue.Lease, s *swept) error {
	count := func(into *int, part func(context.Context, workqueue.Lease) (int, error)) func(context.Context) error {
		return func(ctx context.Context) (err error) {
			*into, err = part(ctx, lease)
			return err
		}
	}
	var failed error
	for _, part := range []func(context.Context) error{
		count(&s.dead, w.node.Settling.ReleaseDeadSessions),
		count(&s.lost, w.node.Settling.ReleaseLostStreams),
		count(&s.standing, w.sweepLines),
		w.watch.SweepHolds,
		w.watch.SweepWatched,
		func(ctx context.Context) error { return w.sweepUnsealed(ctx, lease) },
		func(ctx context.Context) error {
			_, err := session.New(w.node.Store).SweepRequests(ctx, lease)
			return err
		},
		// What asks NATS comes last: when that is silent, it takes all of its time.
		func(ctx context.Context) error { return w.noteHandedOut(ctx, lease) },
		count(&s.late, w.sweepOverdue),
	} {
		timed, cancel := context.WithTimeout(ctx, w.cfg.LeaseTTL)
		err := part(timed)
		cancel()
		failed = errors.Join(failed, err)
		if ctx.Err() != nil || errors.Is(err, workqueue.ErrNotLeader) {
			break
		}
	}
	return failed
}
