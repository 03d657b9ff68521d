package consume

import (
	"sync"
	"sync/atomic"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// life is what a puller is doing, for those who ask.
//
// It is safe for concurrent use.
type life struct {
	Rebinds atomic.Int64

	mu     sync.Mutex
	now    wire.State
	reason string
}

func (l *life) set(state wire.State, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now != wire.StateDraining { // which is for good
		l.now, l.reason = state, reason
	}
}

func (l *life) State() (wire.State, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now, l.reason
}
