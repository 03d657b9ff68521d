package testenv

import (
	"testing"
	"time"
)

const (
	awakeTick = 10 * time.Millisecond
	awakeGap  = 100 * time.Millisecond
)

// Awake returns a channel that is closed when this process has run for so long. A while in which it stood still, and
// what it waits for with it, counts as no more than 100 ms. After the end of the test it is not closed any more.
func Awake(t testing.TB, limit time.Duration) <-chan struct{} {
	t.Helper()
	over := make(chan struct{})
	go func() {
		tick := time.NewTicker(awakeTick)
		defer tick.Stop()
		for last := time.Now(); limit > 0; {
			select {
			case <-t.Context().Done():
				return
			case <-tick.C:
			}
			now := time.Now()
			limit -= min(now.Sub(last), awakeGap)
			last = now
		}
		close(over)
	}()
	return over
}

// Receive returns what c sends before a limit is over.
func Receive[T any](c <-chan T, over <-chan struct{}) (v T, ok bool) {
	select {
	case v = <-c:
		return v, true
	case <-over:
	}
	select { // both may have been there
	case v = <-c:
		return v, true
	default:
		return v, false
	}
}
