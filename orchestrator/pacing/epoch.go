package pacing

import "time"

const (
	// minSettle and maxSettle bound how long after a change nothing is measured: until what was asked for before it has
	// ended, and half as much again.
	minSettle = time.Second
	maxSettle = 30 * time.Second
	// minMeasure is the least time of a measurement, longMeasure when fewer requests have to do.
	minMeasure  = 3 * time.Second
	longMeasure = 30 * time.Second
	// fewRequests is the least that a measurement has to have.
	fewRequests = 10
	// bound is the share of the limit that has to be under way for the limit to be what bounds the throughput.
	bound = 0.7
)

// epoch is a measurement between two changes.
type epoch struct {
	from     time.Time
	before   int   // requests that are to end before it counts
	settled  bool  // it counts
	sum      tally // while the limit was what bounded the throughput
	samples  int   // since then
	answered int   // requests of any size
	sized    tally // of requests of about the chunk in force, whatever bounded it
	stalled  time.Duration
	complete bool
}

// begin starts a measurement after a change.
func (c *Controller) begin() {
	last := c.lately(1)
	c.epoch = epoch{from: c.now, before: (last.live + last.others) * 3 / 2}
}

// measure adds a sample to the measurement under way.
func (c *Controller) measure(t *tally, s *Sample) {
	e := &c.epoch
	first := e.from.IsZero()
	if first {
		e.from = c.now
	}
	if t.requests == 0 && t.failed == 0 && s.Queued > 0 && s.InHands > 0 {
		e.stalled += s.Window
	} else {
		e.stalled = 0
	}
	if !e.settled { // it is from the next sample on
		since := c.now.Sub(e.from)
		e.before -= t.requests + t.failed
		e.settled = first || since >= maxSettle || e.before <= 0 && since >= minSettle
		return
	}
	c.measureChunk(s)
	e.samples++
	if !c.limited(s) {
		return
	}
	e.sum.add(*t)
	n := c.set.InFlight
	long := e.sum.window >= longMeasure && e.sum.requests >= max(fewRequests, n/2)
	e.complete = e.sum.window >= minMeasure && e.sum.requests >= max(fewRequests, 2*n) || long
}

// limited reports whether the limit of requests under way is what bounds the throughput.
func (c *Controller) limited(s *Sample) bool {
	return s.Demand && float64(s.Live) >= bound*float64(c.limit(s))
}

// limit is how many requests may be under way.
func (c *Controller) limit(s *Sample) int {
	if s.Ceiling > 0 {
		return min(c.set.InFlight, s.Ceiling)
	}
	return c.set.InFlight
}
