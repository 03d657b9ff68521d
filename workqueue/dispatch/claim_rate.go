package dispatch

import (
	"github.com/tranchehq/tranche/workqueue/pace"
)

const (
	drainStep = `UPDATE run_step SET tokens = $3, tokens_at = $4 WHERE run_id = $1 AND step = $2`
	drainPace = `UPDATE endpoint_pace SET tokens = $2, tokens_at = $3 WHERE endpoint = $1`
)

// rates finds the buckets that apply. Both rates of an endpoint, the operator's and the learned one of automatic steps,
// share a bucket.
func (c *claim) rates() {
	l := &c.load
	if l.step.Rate > 0 {
		l.step.Bound = BoundStep
		c.buckets = append(c.buckets, &l.step)
	}
	p := l.pace
	b := &pace.Bucket{Rate: p.rate, Tokens: p.tokens, Bound: BoundEndpoint}
	if l.auto && p.learned > 0 && (b.Rate == 0 || p.learned < b.Rate) {
		b.Rate, b.Bound = p.learned, BoundAuto
	}
	if b.Rate > 0 {
		b.Fill(p.age)
		c.buckets = append(c.buckets, b)
	}
	if p.calls.Rate > 0 {
		p.calls.Bound = BoundEndpoint
		c.buckets = append(c.buckets, &p.calls)
	}
	c.ebb()
}

// learnedRateSpent reports whether automatic steps have to wait for what throttling taught.
func (p *paceLoad) learnedRateSpent() bool {
	b := pace.Bucket{Rate: p.learned, Tokens: p.tokens}
	b.Fill(p.age)
	return b.Rate > 0 && !b.Open()
}

// endpointBucket is that of the endpoint's rate of items, which runs share; nil when it has none.
func (c *claim) endpointBucket() *pace.Bucket {
	for _, b := range c.buckets {
		if b.Bound != BoundStep && !b.Calls {
			return b
		}
	}
	return nil
}

// flowing reports whether every rate allows another slice.
func (c *claim) flowing() bool {
	for _, b := range c.buckets {
		if !b.Open() {
			return false
		}
	}
	return true
}

// spend takes tokens for a slice of so many items.
func (c *claim) spend(items int) {
	for _, b := range c.buckets {
		if b.Calls {
			b.Tokens--
		} else {
			b.Tokens -= float64(items)
		}
	}
}

// ebb ends the claim when a rate does, with the longest of their waits.
func (c *claim) ebb() {
	for _, b := range c.buckets {
		if !b.Open() && (c.wait < b.Wait() || c.bound == BoundNone) {
			c.shut(b.Bound, b.Wait())
		}
	}
}

// drain writes what is left in the buckets, and notes it for the steps after this one.
func (c *claim) drain() {
	p := c.load.pace
	for _, b := range c.buckets {
		switch {
		case b.Calls:
			c.queue(1, pace.DrainPaceCalls, c.load.endpoint, b.Tokens, p.now)
		case b.Bound == BoundStep:
			c.queue(1, drainStep, c.Run, c.Step, b.Tokens, c.load.now)
		default:
			p.tokens, p.age = b.Tokens, new(float64)
			c.queue(1, drainPace, c.load.endpoint, b.Tokens, p.now)
		}
	}
}
