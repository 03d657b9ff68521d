package workqueue

import (
	"math"
	"time"
)

// bucket is a token bucket of a rate. It holds a second's worth at the most. Who finds a token in it may take a chunk,
// and so run it into debt: over time exactly the rate passes, and a chunk need not wait until all of it has come in.
type bucket struct {
	rate   float64 // tokens a second; 0: no limit
	tokens float64 // negative: debt
	kept   float64 // not to be taken, for others
	bound  Bound
	calls  bool // its tokens are requests; those of others are items
}

// fill adds what has come in since the bucket was last written. One that never was begins with a single token: the
// first chunk goes at once, and nothing more than the rate follows it.
func (b *bucket) fill(age *float64) {
	if age == nil {
		b.tokens = 1
		return
	}
	b.tokens = min(b.tokens+b.rate*max(*age, 0), max(b.rate, 1))
}

func (b *bucket) open() bool {
	if b.calls {
		n, _ := b.callsFree()
		return n > 0
	}
	return b.tokens > b.kept
}

// callBurst is the part of a second whose calls a rate of calls lets pass at once; it is one call at least.
const callBurst = 0.1

// callsLate is the part of a call that the bucket holds beyond that. Whoever takes a call is late by some milliseconds,
// or by hundreds where much goes on; without it that time would be lost with each, and a rate of 50 a minute come to
// 44. It is less than a call, so that a time in which whole calls come in has none more for it. But after a pause two
// calls may come close together, a tenth of the time between calls apart.
const callsLate = 0.9

// fillCalls adds what has come in to a bucket of calls. A call needs a whole token: no minute has more calls than a
// rate of so many a minute allows and what the bucket holds, which is one, or what passes at once of a fast rate.
func (b *bucket) fillCalls(age *float64) {
	b.calls = true
	if age == nil {
		b.tokens = 1
		return
	}
	b.tokens = min(b.tokens+b.rate*max(*age, 0), max(b.rate*callBurst, 1)+callsLate)
}

// callsFree is how many calls may be made now, and in how long the next one may when there is none.
func (b *bucket) callsFree() (n int, wait time.Duration) {
	const rounding = 1e-9
	if b.rate <= 0 {
		return math.MaxInt32, 0
	}
	if b.tokens >= 1-rounding {
		return int(b.tokens + rounding), 0
	}
	return 0, time.Duration((1-b.tokens)/b.rate*float64(time.Second)) + time.Millisecond
}

// spare reports whether there is no rate, or something in the bucket.
func (b *bucket) spare() bool { return b.rate <= 0 || b.tokens > 0 }

// keep leaves to each of others as much as may be taken now.
func (b *bucket) keep(others int) { b.kept = max(b.tokens, 0) * float64(others) / float64(others+1) }

// minRateWait keeps a fast rate from being fetched in thimbles.
const minRateWait = 20 * time.Millisecond

// wait is how long until the bucket is open again.
func (b *bucket) wait() time.Duration {
	if b.calls {
		_, wait := b.callsFree()
		return max(minRateWait, wait)
	}
	if b.tokens > 0 {
		return minRateWait // others have first choice of what is left
	}
	return max(minRateWait, time.Duration(-b.tokens/b.rate*float64(time.Second))+time.Millisecond)
}

const (
	drainStep = `UPDATE run_step SET tokens = $3, tokens_at = $4 WHERE run_id = $1 AND step = $2`
	drainPace = `UPDATE endpoint_pace SET tokens = $2, tokens_at = $3 WHERE endpoint = $1`
)

// rates finds the buckets that apply. Both rates of an endpoint, the operator's and the learned one of automatic steps,
// share a bucket.
func (c *claim) rates() {
	l := &c.load
	if l.step.rate > 0 {
		l.step.bound = BoundStep
		c.buckets = append(c.buckets, &l.step)
	}
	p := l.pace
	b := &bucket{rate: p.rate, tokens: p.tokens, bound: BoundEndpoint}
	if l.auto && p.learned > 0 && (b.rate == 0 || p.learned < b.rate) {
		b.rate, b.bound = p.learned, BoundAuto
	}
	if b.rate > 0 {
		b.fill(p.age)
		c.buckets = append(c.buckets, b)
	}
	if p.calls.rate > 0 {
		p.calls.bound = BoundEndpoint
		c.buckets = append(c.buckets, &p.calls)
	}
	c.ebb()
}

// learnedRateSpent reports whether automatic steps have to wait for what throttling taught.
func (p *paceLoad) learnedRateSpent() bool {
	b := bucket{rate: p.learned, tokens: p.tokens}
	b.fill(p.age)
	return b.rate > 0 && !b.open()
}

// endpointBucket is that of the endpoint's rate of items, which runs share; nil when it has none.
func (c *claim) endpointBucket() *bucket {
	for _, b := range c.buckets {
		if b.bound != BoundStep && !b.calls {
			return b
		}
	}
	return nil
}

// flowing reports whether every rate allows another slice.
func (c *claim) flowing() bool {
	for _, b := range c.buckets {
		if !b.open() {
			return false
		}
	}
	return true
}

// spend takes tokens for a slice of so many items.
func (c *claim) spend(items int) {
	for _, b := range c.buckets {
		if b.calls {
			b.tokens--
		} else {
			b.tokens -= float64(items)
		}
	}
}

// ebb ends the claim when a rate does, with the longest of their waits.
func (c *claim) ebb() {
	for _, b := range c.buckets {
		if !b.open() && (c.wait < b.wait() || c.bound == BoundNone) {
			c.shut(b.bound, b.wait())
		}
	}
}

// drain writes what is left in the buckets, and notes it for the steps after this one.
func (c *claim) drain() {
	p := c.load.pace
	for _, b := range c.buckets {
		switch {
		case b.calls:
			c.queue(1, drainPaceCalls, c.load.endpoint, b.tokens, p.now)
		case b.bound == BoundStep:
			c.queue(1, drainStep, c.Run, c.Step, b.tokens, c.load.now)
		default:
			p.tokens, p.age = b.tokens, new(float64)
			c.queue(1, drainPace, c.load.endpoint, b.tokens, p.now)
		}
	}
}
