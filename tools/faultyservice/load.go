package faultyservice

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Load models how long chunks take. Alone, a chunk takes PerChunk plus PerItem per item. With c concurrent chunks
// each takes longer by the factor
//
//	max(1, c/Servers) · (1 + c·(c−1)/Best²)
//
// where a zero Servers or Best leaves its factor out. The first factor is a pool of workers. The second is the
// coherence penalty of Gunther's universal scalability law: throughput peaks at c = Best.
type Load struct {
	PerChunk time.Duration `json:"per_chunk,omitempty"`
	PerItem  time.Duration `json:"per_item,omitempty"`
	Servers  int           `json:"servers,omitempty"`
	Best     int           `json:"best,omitempty"`
}

func (l *Load) validate() error {
	if l.PerChunk < 0 || l.PerItem < 0 || l.Servers < 0 || l.Best < 0 {
		return errors.New("faultyservice: Load has a negative field")
	}
	return nil
}

func (l *Load) alone(n int) time.Duration { return l.PerChunk + time.Duration(n)*l.PerItem }

// slowdown is the factor by which c concurrent chunks take longer.
func (l *Load) slowdown(c int) float64 {
	factor := 1.0
	if l.Servers > 0 {
		factor = max(1, float64(c)/float64(l.Servers))
	}
	if l.Best > 0 {
		factor *= 1 + float64(c)*float64(c-1)/float64(l.Best*l.Best)
	}
	return factor
}

// clock slows down concurrent chunks. It keeps one virtual time, which runs slower than real time by the current
// slowdown, so a chunk that starts or ends changes the end of all others.
type clock struct {
	slowdown func(atOnce int) float64

	mu      sync.Mutex
	virtual time.Duration
	asOf    time.Time // the real time of virtual
	stays   map[*stay]bool
	timer   *time.Timer // for the next end
}

type stay struct {
	end  time.Duration // virtual
	over chan struct{}
}

func newClock(slowdown func(int) float64) *clock {
	return &clock{slowdown: slowdown, asOf: time.Now(), stays: map[*stay]bool{}}
}

// work blocks for the duration of a chunk: alone, or longer with others. It returns early when ctx ends.
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

// advance brings the virtual time up to date and ends chunks that are over. c.mu must be held.
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

// arm sets the timer for the next end at the current slowdown. c.mu must be held.
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
	// One nanosecond more, so that rounding does not leave the end just ahead.
	c.timer = time.AfterFunc(time.Duration(float64(next)*c.slowdown(len(c.stays)))+1, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.advance()
		c.arm()
	})
}

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
