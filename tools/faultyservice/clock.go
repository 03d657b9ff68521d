package faultyservice

import (
	"context"
	"sync"
	"time"
)

// clock lets chunks take their time together: the more there are, the slower it goes for each. It keeps one virtual
// time, which runs slower than the real one by the slowdown of the moment, so a chunk that comes or goes changes the
// end of all others.
type clock struct {
	slowdown func(atOnce int) float64

	mu      sync.Mutex
	virtual time.Duration
	asOf    time.Time // the real time of virtual
	stays   map[*stay]bool
	timer   *time.Timer // for the next end
}

// stay is a chunk at work.
type stay struct {
	end  time.Duration // virtual
	over chan struct{}
}

func newClock(slowdown func(int) float64) *clock {
	return &clock{slowdown: slowdown, asOf: time.Now(), stays: map[*stay]bool{}}
}

// work lets a chunk take what it takes alone, and longer when there are others. It ends early with ctx.
func (c *clock) work(ctx context.Context, alone time.Duration) error {
	if alone <= 0 {
		return ctx.Err()
	}
	s := &stay{over: make(chan struct{})}
	c.mu.Lock()
	c.advance()
	s.end = c.virtual + alone
	c.stays[s] = true
	c.arm()
	c.mu.Unlock()
	select {
	case <-s.over:
		return nil
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		c.advance()
		delete(c.stays, s)
		c.arm()
		return ctx.Err()
	}
}

// advance brings the virtual time up to now and ends what is over.
func (c *clock) advance() {
	now := time.Now()
	if n := len(c.stays); n > 0 {
		c.virtual += time.Duration(float64(now.Sub(c.asOf)) / c.slowdown(n))
	}
	c.asOf = now
	for s := range c.stays {
		if s.end <= c.virtual {
			delete(c.stays, s)
			close(s.over)
		}
	}
}

// arm sets the timer to the next end at the slowdown of now.
func (c *clock) arm() {
	if c.timer != nil {
		c.timer.Stop()
	}
	if len(c.stays) == 0 {
		return
	}
	var next time.Duration
	for s := range c.stays {
		if left := s.end - c.virtual; next == 0 || left < next {
			next = left
		}
	}
	// A nanosecond more, lest rounding leaves the end just ahead.
	c.timer = time.AfterFunc(time.Duration(float64(next)*c.slowdown(len(c.stays)))+1, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.advance()
		c.arm()
	})
}
