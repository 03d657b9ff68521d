package testenv

import (
	"slices"
	"sync"
	"testing"
	"time"
)

const (
	watchTick = 10 * time.Millisecond
	watchGap  = 100 * time.Millisecond
)

// Watch measures for how long this process has run, so that a test can limit the product's time. A longer pause, in
// which the process and its peers were stalled, counts as 100 ms.
type Watch struct {
	mu           sync.Mutex
	last         time.Time // counted up to here
	ran, longest time.Duration
	alarms       []alarm
}

type alarm struct {
	at   time.Duration
	over chan struct{}
}

// NewWatch starts a watch. It stops at the end of the test.
func NewWatch(t testing.TB) *Watch {
	t.Helper()
	w := &Watch{last: time.Now()}
	var ticking sync.WaitGroup
	ticking.Go(func() {
		tick := time.NewTicker(watchTick)
		defer tick.Stop()
		for {
			select {
			case <-t.Context().Done():
				return
			case <-tick.C:
			}
			w.Ran()
		}
	})
	t.Cleanup(ticking.Wait) // the context is done by then
	return w
}

// Ran returns how long the process has run since the watch was started.
func (w *Watch) Ran() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count()
	return w.ran
}

// Longest returns the longest time for which the process did not run.
func (w *Watch) Longest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count()
	return w.longest
}

// After returns a channel that is closed once the process has run for d, but not after the end of the test.
func (w *Watch) After(d time.Duration) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count()
	over := make(chan struct{})
	w.alarms = append(w.alarms, alarm{w.ran + d, over})
	return over
}

// count adds the time since its last call. The lock is held.
func (w *Watch) count() {
	now := time.Now()
	gap := now.Sub(w.last)
	w.last = now
	w.longest = max(w.longest, gap)
	w.ran += min(gap, watchGap)
	w.alarms = slices.DeleteFunc(w.alarms, func(a alarm) bool {
		if a.at > w.ran {
			return false
		}
		close(a.over)
		return true
	})
}

// ReceiveBefore returns a value from c, unless over is closed before.
func ReceiveBefore[T any](c <-chan T, over <-chan struct{}) (v T, ok bool) {
	select {
	case v = <-c:
		return v, true
	case <-over:
	}
	select { // both may have been ready
	case v = <-c:
		return v, true
	default:
		return v, false
	}
}
