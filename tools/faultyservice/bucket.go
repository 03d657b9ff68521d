package faultyservice

import (
	"sync"
	"time"
)

// bucket lets items through at a rate.
type bucket struct {
	rate, burst float64

	mu     sync.Mutex
	tokens float64
	asOf   time.Time
}

func newBucket(t *Throttle) *bucket {
	burst := t.Burst
	if burst == 0 {
		burst = t.PerSecond
	}
	return &bucket{rate: t.PerSecond, burst: burst, tokens: burst, asOf: time.Now()}
}

// take returns how many of n items may pass now.
func (b *bucket) take(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.tokens = min(b.burst, b.tokens+b.rate*now.Sub(b.asOf).Seconds())
	b.asOf = now
	passed := min(n, int(b.tokens))
	b.tokens -= float64(passed)
	return passed
}
