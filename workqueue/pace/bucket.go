package pace

import (
	"math"
	"time"
)

// Bucket is a token bucket of a rate. It holds a second's worth at the most. Who finds a token in it may take a chunk,
// and so run it into debt: over time exactly the rate passes, and a chunk need not wait until all of it has come in.
type Bucket struct {
	Rate   float64 // tokens a second; 0: no limit
	Tokens float64 // negative: debt
	kept   float64 // not to be taken, for others
	Bound  Bound
	Calls  bool // its tokens are requests; those of others are items
}

// Fill adds what has come in since the bucket was last written. One that never was begins with a single token: the
// first chunk goes at once, and nothing more than the rate follows it.
func (b *Bucket) Fill(age *float64) {
	if age == nil {
		b.Tokens = 1
		return
	}
	b.Tokens = min(b.Tokens+b.Rate*max(*age, 0), max(b.Rate, 1))
}

// Open reports whether there is something in it.
func (b *Bucket) Open() bool {
	if b.Calls {
		n, _ := b.CallsFree()
		return n > 0
	}
	return b.Tokens > b.kept
}

// callBurst is the part of a second whose calls a rate of calls lets pass at once; it is one call at least.
const callBurst = 0.1

// callsLate is the part of a call that the bucket holds beyond that. Whoever takes a call is late by some milliseconds,
// or by hundreds where much goes on; without it that time would be lost with each, and a rate of 50 a minute come to
// 44. It is less than a call, so that a time in which whole calls come in has none more for it. But after a pause two
// calls may come close together, a tenth of the time between calls apart.
const callsLate = 0.9

// FillCalls adds what has come in to a bucket of calls. A call needs a whole token: no minute has more calls than a
// rate of so many a minute allows and what the bucket holds, which is one, or what passes at once of a fast rate.
func (b *Bucket) FillCalls(age *float64) {
	b.Calls = true
	if age == nil {
		b.Tokens = 1
		return
	}
	b.Tokens = min(b.Tokens+b.Rate*max(*age, 0), max(b.Rate*callBurst, 1)+callsLate)
}

// CallsFree is how many calls may be made now, and in how long the next one may when there is none.
func (b *Bucket) CallsFree() (n int, wait time.Duration) {
	const rounding = 1e-9
	if b.Rate <= 0 {
		return math.MaxInt32, 0
	}
	if b.Tokens >= 1-rounding {
		return int(b.Tokens + rounding), 0
	}
	return 0, time.Duration((1-b.Tokens)/b.Rate*float64(time.Second)) + time.Millisecond
}

// Spare reports whether there is no rate, or something in the bucket.
func (b *Bucket) Spare() bool { return b.Rate <= 0 || b.Tokens > 0 }

// Keep leaves to each of others as much as may be taken now.
func (b *Bucket) Keep(others int) { b.kept = max(b.Tokens, 0) * float64(others) / float64(others+1) }

// minRateWait keeps a fast rate from being fetched in thimbles.
const minRateWait = 20 * time.Millisecond

// Wait is how long until the bucket is open again.
func (b *Bucket) Wait() time.Duration {
	if b.Calls {
		_, wait := b.CallsFree()
		return max(minRateWait, wait)
	}
	if b.Tokens > 0 {
		return minRateWait // others have first choice of what is left
	}
	return max(minRateWait, time.Duration(-b.Tokens/b.Rate*float64(time.Second))+time.Millisecond)
}

// Bound says what kept a claim from taking more.
type Bound string
