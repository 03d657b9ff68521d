package bank

import (
	"sync"
	"time"
)

// limit is a token bucket that holds what is allowed in a second: so much may come at once after a rest.
type limit struct {
	mu     sync.Mutex
	rate   float64 // a second; 0: no limit
	tokens float64
	last   time.Time
}

func newLimit(rate float64) *limit { return &limit{rate: rate, tokens: max(1, rate)} }

// allow takes a token, if there is one.
func (l *limit) allow(now time.Time) bool {
	if l.rate == 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.last.IsZero() {
		l.tokens = min(max(1, l.rate), l.tokens+l.rate*now.Sub(l.last).Seconds())
	}
	l.last = now
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}
