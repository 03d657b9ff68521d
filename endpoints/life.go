package endpoints

import (
	"sync"
	"sync/atomic"
)

// life is what a puller is doing, for those who ask.
//
// It is safe for concurrent use.
type life struct {
	rebinds atomic.Int64

	mu     sync.Mutex
	now    State
	reason string
}

func (l *life) set(state State, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now != StateDraining { // which is for good
		l.now, l.reason = state, reason
	}
}

func (l *life) state() (State, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now, l.reason
}
