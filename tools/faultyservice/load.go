package faultyservice

import (
	"sync"
	"time"
)

// bucket holds the items of one second.
type bucket struct {
	rate float64

	mu     sync.Mutex
	tokens float64
	asOf   time.Time
}

func (b *bucket) take(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.tokens = min(b.rate, b.tokens+b.rate*now.Sub(b.asOf).Seconds())
	b.asOf = now
	passed := min(n, int(b.tokens))
	b.tokens -= float64(passed)
	return passed
}

type outage struct {
	Outage

	mu       sync.Mutex
	answered int
	over     chan struct{} // from its start on; closed when it is over
	ended    bool
}

// down returns a channel that is closed at the end of the outage, or nil if there is none now.
func (o *outage) down() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.ended || o.answered < o.After:
		return nil
	case o.over == nil:
		o.over = make(chan struct{})
		time.AfterFunc(o.For, func() {
			if o.Until != nil {
				<-o.Until
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			o.ended = true
			close(o.over)
		})
	}
	return o.over
}

func (o *outage) note(answered int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answered += answered
}
