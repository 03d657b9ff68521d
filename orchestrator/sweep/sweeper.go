// Package sweep reissues slices that cannot end otherwise: of dead sessions, lost streams, silent services, and lost
// requests. Only the leader runs it.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Config configures a Sweeper. No field has a default.
type Config struct {
	LeaseTTL time.Duration // of the leader's lease, from its last renewal
	// Queues returns the consumers of endpoints: nil if missing, absent if unknown. More than FewQueues are listed.
	Queues    func(ctx context.Context, endpoints []string) map[string]*jetstream.ConsumerInfo
	FewQueues int
}

type streamsSeen interface {
	core.Epochs

	// WellFor returns for how long JetStream has been available to this node.
	WellFor() time.Duration
}

type madeConsumers interface {
	core.Ensurer

	// Forget makes the next Ensure check the endpoint's consumer.
	Forget(endpoint string)
}

type missed interface {
	SweepHolds(ctx context.Context) error
	SweepWatched(ctx context.Context) error
}

// resender sends requeued dead letters left by a dead node.
type resender interface{ Resend() }

type ender interface {
	SealRun(ctx context.Context, req start.SealRequest) (start.Sealed, error)
	Cancel(ctx context.Context, c control.Control) (control.Cancelled, error)
}

// Sweeper reissues slices that cannot end otherwise. It is for the leader's tasks.
type Sweeper struct {
	node      *core.Core
	cfg       Config
	streams   streamsSeen
	endpoints madeConsumers
	watch     missed
	letters   resender
	runs      ender
	healed    time.Time // when lanes were last repaired; for sweepLines
	unmoved   time.Time // when no service of many endpoints had progressed; for noteHandedOut

	unrecorded map[workqueue.SliceID]*lostMark // for leaveUnrecorded
}

// New returns a sweeper.
func New(k *core.Core, streams streamsSeen, endpoints madeConsumers, watch missed, letters resender, runs ender,
	cfg Config,
) *Sweeper {
	return &Sweeper{node: k, cfg: cfg, streams: streams, endpoints: endpoints, watch: watch, letters: letters, runs: runs}
}

type swept struct{ dead, lost, standing, late int }

// Sweeping is the leader task that sweeps, at every renewal of the lease.
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

// EndingStalled is the leader task that ends transactions of stalled processes, at every beat of the lease. Their
// locks can block parts of a sweep, which could then not end them.
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

// sweep runs its parts, each for at most the lease's life. One that fails or times out continues in the next sweep.
// Each write checks the lease, or is conditional on the state that it changes: see the methods.
func (w *Sweeper) sweep(ctx context.Context, lease workqueue.Lease, s *swept) error {
	count := func(into *int, part func(context.Context, workqueue.Lease) (int, error)) func(context.Context) error {
		return func(ctx context.Context) (err error) {
			*into, err = part(ctx, lease)
			return err
		}
	}
	return inTurn(ctx, w.cfg.LeaseTTL,
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
		// Parts that query NATS come last: when it is silent, they use up their time.
		func(ctx context.Context) error { return w.noteHandedOut(ctx, lease) },
		count(&s.late, w.sweepOverdue))
}

// inTurn runs parts of a sweep, each with a time limit, until ctx ends or another node leads.
func inTurn(ctx context.Context, limit time.Duration, parts ...func(context.Context) error) (failed error) {
	for _, part := range parts {
		timed, cancel := context.WithTimeout(ctx, limit)
		err := part(timed)
		cancel()
		failed = errors.Join(failed, err)
		if ctx.Err() != nil || errors.Is(err, workqueue.ErrNotLeader) {
			break
		}
	}
	return failed
}

// Clearing is the leader task that removes abandoned loads and unneeded large results, at every renewal of the lease.
func (w *Sweeper) Clearing(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
	cleared, err := start.New(w.node.Store).ClearAbandonedLoads(ctx, lease)
	if len(cleared) > 0 {
		w.node.Log.Info("removed loads whose node is gone", zap.Int("loads", len(cleared)))
	}
	swept, failed := export.New(w.node.Store).Sweep(ctx, lease)
	if swept > 0 {
		w.node.Log.Info("deleted what had come of results that no one will record", zap.Int("results", swept))
	}
	return 0, errors.Join(err, failed)
}

// healEvery is the time between repairs of lanes, which should find none, and read all runs in progress.
const healEvery = 5 * time.Second

// sweepLines ends what follows a failed item of a lane where the plan demands it, and returns how many stalled lanes
// it repaired.
func (w *Sweeper) sweepLines(ctx context.Context, lease workqueue.Lease) (standing int, err error) {
	ended, err := w.node.Settling.EndStopped(ctx, lease)
	if ended > 0 {
		w.node.Log.Info("ended items of lines that a failure has stopped", zap.Int("items", ended))
	}
	if errors.Is(err, workqueue.ErrNotLeader) || time.Since(w.healed) < healEvery {
		return 0, err
	}
	w.healed = time.Now()
	standing, failed := redo.New(w.node.Store).RepairLanes(ctx, lease)
	if standing > 0 {
		w.node.Log.Warn("moved on lines of items that no one had moved on", zap.Int("lines", standing))
	}
	return standing, errors.Join(err, failed)
}

// sweepUnsealed reports open runs past their seal deadline, and seals or cancels those set to end so. It retries
// failures.
func (w *Sweeper) sweepUnsealed(ctx context.Context, lease workqueue.Lease) error {
	due, err := start.New(w.node.Store).ReportOverdue(ctx, lease)
	if err != nil {
		return err
	}
	for i := range due {
		if o := &due[i]; o.Reported {
			w.node.Log.Warn("an open run was not sealed before its deadline", zap.Stringer("run", o.Run),
				zap.Time("seal_deadline", o.SealDeadline), zap.Int64("items", o.Items),
				zap.String("on_overdue", string(o.OnOverdue)))
			w.node.NotifyChange()
		}
		if err := w.endUnsealed(ctx, &due[i]); err != nil {
			w.node.Log.Warn("end a run that was not sealed before its deadline; trying again", zap.Stringer("run", due[i].Run),
				zap.Error(err))
		}
	}
	return nil
}

func (w *Sweeper) endUnsealed(ctx context.Context, o *start.OverdueRun) (err error) {
	reason := "it was not sealed before its deadline"
	if o.Abandoned {
		reason += fmt.Sprintf(", and for %d days no one did anything with it, nor was an item of it worked on",
			start.AbandonedAfter/(24*time.Hour))
	}
	switch o.OnOverdue {
	case start.OverdueSeal:
		_, err = w.runs.SealRun(ctx, start.SealRequest{Run: o.Run, Actor: workqueue.Engine, Reason: reason})
	case start.OverdueCancel:
		_, err = w.runs.Cancel(ctx, control.Control{Run: o.Run, Actor: workqueue.Engine, Reason: reason})
	}
	return err
}
