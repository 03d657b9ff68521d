package orchestrator

import (
	"sync"
	"time"
)

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
