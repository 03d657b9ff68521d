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
	// watchPause is the least time between two looks of a node at what its commits brought.
	watchPause = 50 * time.Millisecond
	// watchTimeout bounds one look. What it leaves the leader finds within a second.
	watchTimeout = 5 * time.Second
)

// watcher sees to what commits brought beside outcomes: it remembers what they gave reason to look at, and when slices
// come due. What comes twice is looked at once.
type watcher struct {
	node   *core.Core
	events core.Announcer
	alarms alarms

	mu   sync.Mutex
	due  settle.FollowUp
	come chan struct{}
}

// newWatcher returns what looks at what commits gave reason to look at.
func newWatcher(k *core.Core, events core.Announcer) *watcher {
	return &watcher{node: k, events: events, come: make(chan struct{}, 1)}
}

// Seen sees to what a recording brought beside outcomes, of replies that came at a time.
func (w *watcher) Seen(out settle.Recorded, came time.Time) {
	w.alarms.set(time.Now(), out.Due)
	w.node.WakeFreed()
	w.events.Announce(out.Completed, came)
	w.Add(out.Look)
}

// NextDue returns how long until the first slice comes due that this node has scheduled; 0: there is none.
func (w *watcher) NextDue(now time.Time) time.Duration { return w.alarms.next(now) }

// Add has something looked at.
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

// Run looks at endpoints and runs of which this node has recorded something: whether an endpoint is down or up
// again, whether its chunks are too big, whether too many items of a run have failed, whether a step has all that it
// waited for. It tells other nodes of items that became ready, which they may be the ones to work on. The leader looks
// at all of them once a second, so what is missed here is late and no more.
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
		if held {
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

// watched tells of a look that failed.
func (w *watcher) watched(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		w.node.Log.Warn("look at what failed; the leader looks again", zap.Error(err))
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
		w.node.WakeOthers() // work may go on
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

// SweepWatched looks at everything that any node may have missed. Leader work, although each of its looks may be
// anybody's. When the time does not do for all endpoints, it is others that are looked at the next time.
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

// SweepHolds looks at samples that have ended, and at runs of which too many items have failed. Leader work, also.
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
	// alarmTick is how exactly alarms go off: what comes due close together is claimed together.
	alarmTick = 50 * time.Millisecond
	// alarmReach is how far ahead they are kept, which bounds how many there are. Later times are left to Poll.
	alarmReach = 30 * time.Second
)

// alarms are the times at which slices come due that this node has scheduled: without them each pause before a try
// would be followed by a part of Poll. They are a convenience, as every node looks every Poll by itself. The zero value
// is ready, and safe for concurrent use.
type alarms struct {
	mu sync.Mutex
	at map[int64]bool // in ticks since the epoch
}

// set adds times from now on.
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

// next returns how long until the first of them, 0 when there is none, and forgets those that have passed.
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
