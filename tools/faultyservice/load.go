package faultyservice

import (
	"context"
	"sync"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
)

// Load is how long chunks take: PerChunk plus PerItem per item. Servers, if not 0, is how many are worked on at a
// time; the others wait.
type Load struct {
	PerChunk time.Duration `json:"per_chunk,omitempty"`
	PerItem  time.Duration `json:"per_item,omitempty"`
	Servers  int           `json:"servers,omitempty"`

	busy chan struct{} // a value for each server at work
}

// work blocks for the duration of a chunk of n items.
func (l *Load) work(ctx context.Context, n int) error {
	if l.busy != nil {
		select {
		case l.busy <- struct{}{}:
			defer func() { <-l.busy }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return backoff.Sleep(ctx, l.PerChunk+time.Duration(n)*l.PerItem)
}

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
