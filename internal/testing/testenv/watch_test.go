package testenv

import (
	"testing"
	"testing/synctest"
	"time"
)

// standStill makes it appear that the process has not run for so long.
func (w *Watch) standStill(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = w.last.Add(-d)
}

func (w *Watch) want(t *testing.T, ran, longest time.Duration) {
	t.Helper()
	if got := w.Ran(); got != ran {
		t.Errorf("it ran for %s; want %s", got, ran)
	}
	if got := w.Longest(); got != longest {
		t.Errorf("it was stalled for %s; want %s", got, longest)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := NewWatch(t)
		began := time.Now()
		early, late := w.After(time.Second), w.After(3*time.Second)
		<-early
		if took := time.Since(began); took != time.Second {
			t.Errorf("a second was over after %s", took)
		}
		w.want(t, time.Second, watchTick)
		w.standStill(time.Minute)
		w.want(t, time.Second+watchGap, time.Minute)
		select {
		case <-late:
			t.Error("the time in which it was stalled counts")
		default:
		}
		<-late
		if took := time.Since(began); took != 3*time.Second-watchGap {
			t.Errorf("3 s less one gap were over after %s", took)
		}
	})
}
