package orchestrator

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// watchPause is the least time between two checks, watchTimeout limits one: the leader does the rest within a second.
	watchPause   = 50 * time.Millisecond
	watchTimeout = 5 * time.Second
)

// watcher handles what commits brought in addition to outcomes. Duplicates are checked once.
type watcher struct {
	node   *core.Core
	events core.Announcer
	alarms alarms

	mu   sync.Mutex
	due  settle.FollowUp
	come chan struct{}
}

// Seen handles a recording. came is when its replies came.
func (w *watcher) Seen(out settle.Recorded, came time.Time) {
	w.alarms.set(time.Now(), out.Due)
	w.node.WakeFreed()
	w.events.Announce(out.Completed, came)
	w.Add(out.Look)
}

// NextDue returns the time until the first slice scheduled by this node comes due; 0: none.
func (w *watcher) NextDue(now time.Time) time.Duration { return w.alarms.next(now) }

func (w *watcher) Add(l settle.FollowUp) {
	if l.Empty() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due.Endpoints = merged(w.due.Endpoints, l.Endpoints)
	w.due.Halved = merged(w.due.Halved, l.Halved)
	w.due.Runs = merged(w.due.Runs, l.Runs)
	w.due.Barriers = merged(w.due.Barriers, l.Barriers)
	w.due.Unlocked = w.due.Unlocked || l.Unlocked
	core.Signal(w.come)
}

func merged[T comparable](have, more []T) []T {
	for _, m := range more {
		if !slices.Contains(have, m) {
			have = append(have, m)
		}
	}
	return have
}

func (w *watcher) take() settle.FollowUp {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := w.due
	w.due = settle.FollowUp{}
	return due
}

// Run checks what this node's commits concern: breakers, chunk sizes, thresholds of runs, barriers. It wakes other
// nodes for items that became ready. The leader checks everything once a second, so a miss here is only a delay.
func (w *watcher) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.come:
		}
		w.lookAt(ctx, w.take())
		if backoff.Sleep(ctx, watchPause) != nil {
			return
		}
	}
}

func (w *watcher) lookAt(ctx context.Context, due settle.FollowUp) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	for _, run := range due.Runs {
		held, err := control.New(w.node.Store).CheckThreshold(ctx, run)
		w.watched(ctx, err)
		if held && err == nil {
			w.node.Log.Warn("too many items failed; the run is held", zap.Stringer("run", run))
			core.Signal(w.node.Publish)
		}
	}
	passed := false
	for _, run := range due.Barriers {
		steps, err := dispatch.New(w.node.Store).CheckBarriers(ctx, run)
		w.watched(ctx, err)
		if len(steps) > 0 {
			w.node.Log.Info("steps begin that waited until all items had come so far", zap.Stringer("run", run),
				zap.Any("steps", steps))
			passed = true
		}
	}
	if due.Unlocked || passed {
		w.node.WakeOthers()
	}
	for _, endpoint := range due.Endpoints {
		w.watched(ctx, w.lookAtBreaker(ctx, endpoint))
	}
	for _, endpoint := range due.Halved {
		w.watched(ctx, w.lookAtSize(ctx, endpoint))
	}
}

func (w *watcher) watched(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		w.node.Log.Warn("check what failed; the leader checks again", zap.Error(err))
	}
}

func (w *watcher) lookAtBreaker(ctx context.Context, endpoint string) error {
	change, err := pace.New(w.node.Store).CheckBreaker(ctx, endpoint)
	if err != nil || !change.Changed {
		return err
	}
	w.node.Log.Warn("breaker", zap.String("endpoint", endpoint), zap.Bool("open", change.Open),
		zap.String("reason", change.Reason))
	if !change.Open {
		w.node.WakeOthers() // work may continue
	}
	return nil
}

func (w *watcher) lookAtSize(ctx context.Context, endpoint string) error {
	c, err := pace.New(w.node.Store).CheckTooBig(ctx, endpoint)
	if err == nil && c.Changed {
		w.node.Log.Warn("chunks are held to a size", zap.String("endpoint", endpoint), zap.Int("items", c.Items),
			zap.String("reason", c.Reason))
	}
	return err
}

// SweepWatched checks everything that any node may have missed, for the leader. When time runs out, the next call
// covers other endpoints.
func (w *watcher) SweepWatched(ctx context.Context) error {
	names, err := w.node.Settling.WatchedEndpoints(ctx)
	if err != nil {
		return err
	}
	barriers, err := dispatch.New(w.node.Store).WaitingBarriers(ctx)
	if err != nil {
		return err
	}
	core.Shuffle(names)
	w.lookAt(ctx, settle.FollowUp{Endpoints: names, Halved: names, Barriers: barriers})
	return nil
}

// SweepHolds checks ended canaries, and runs with too many failed items, for the leader.
func (w *watcher) SweepHolds(ctx context.Context) error {
	due, err := control.New(w.node.Store).DueHolds(ctx)
	if err != nil {
		return err
	}
	var failed error
	for _, d := range due {
		if d.Threshold {
			_, err = control.New(w.node.Store).CheckThreshold(ctx, d.Run)
		}
		if d.FailFast {
			_, err = control.New(w.node.Store).CheckFailFast(ctx, d.Run)
		}
		if d.Canary && err == nil {
			_, err = control.New(w.node.Store).CheckCanary(ctx, d.Run)
		}
		failed, err = errors.Join(failed, err), nil
	}
	if len(due) > 0 {
		w.node.NotifyChange()
	}
	return failed
}

const (
	// alarmTick is the resolution of alarms: slices due within one tick are claimed together.
	alarmTick = 50 * time.Millisecond
	// alarmReach limits how far ahead alarms are kept. Poll covers later times.
	alarmReach = 30 * time.Second
)

// alarms are when slices scheduled by this node come due: otherwise a pause before a retry would grow by part of
// Poll. Nothing depends on them. The zero value is ready, and safe for concurrent use.
type alarms struct {
	mu sync.Mutex
	at map[int64]bool // in ticks since the epoch
}

func (a *alarms) set(now time.Time, in []time.Duration) {
	if len(in) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at == nil {
		a.at = map[int64]bool{}
	}
	for _, d := range in {
		if d <= alarmReach {
			a.at[now.Add(d).UnixNano()/int64(alarmTick)+1] = true
		}
	}
}

// next returns how long until the first alarm, 0 if none, and drops those that have passed.
func (a *alarms) next(now time.Time) (wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for tick := range a.at {
		left := time.Unix(0, tick*int64(alarmTick)).Sub(now)
		switch {
		case left <= 0:
			delete(a.at, tick)
		case wait == 0 || left < wait:
			wait = left
		}
	}
	return wait
}
