package autotune

import (
	"cmp"
	"time"
)

const (
	// overhead is what a request costs beside the time that a service works on it: claim, publish, fetch, record.
	overhead = 5 * time.Millisecond
	// betterBy is how much less time an item must take for another size to be kept.
	betterBy = 0.03
	// manyRequests tell how long a size takes, and fewSlow when each takes slowRequest at least.
	manyRequests = 24
	fewSlow      = 8
	slowRequest  = time.Second
	// minSized is the least time of a measurement of requests of one size.
	minSized = 2 * time.Second
	// aboutSize is the least share of the chunk that a request must hold to say something about it.
	aboutSize = 0.7
	// manyTooBig is the share of requests of a size that must fail as too big for it to be left.
	manyTooBig = 0.3
	// sizeHold is how long a size is not retried that was no better, failHold one that failed; both double.
	sizeHold    = 3 * time.Minute
	failHold    = 10 * time.Minute
	longestHold = 2 * time.Hour
	// leftRest is how long after a size was left time-outs of a smaller one say nothing.
	leftRest = 30 * time.Second
)

// chunkMemory is what is known about sizes of requests.
type chunkMemory struct {
	search
	// Ceiling is a size that failed, and is not tried until TooBig is free again; 0: none.
	Ceiling int  `json:"ceiling,omitempty"`
	TooBig  hold `json:"too_big"`
	// LeftAt is when a size that failed was left last.
	LeftAt time.Time `json:"left_at,omitzero"`
}

// size is how many items requests may hold at present.
func (c *Controller) size(s *Sample) int { return min(c.set.Chunk, cmp.Or(s.ChunkMax, maxChunk)) }

// isSize reports whether requests say something about the present size.
func (c *Controller) isSize(e *Ended, s *Sample) bool {
	size := c.size(s)
	return e.Requests > 0 && float64(e.Items) >= aboutSize*float64(size*e.Requests) && e.Items <= size*e.Requests
}

// ofThisSize returns how many requests of the present size failed as too big or timed out, with which code, and how
// many were answered.
func (c *Controller) ofThisSize(s *Sample) (bad, good int, code string) {
	good = c.measure.sized.requests
	for _, e := range s.Ended {
		switch kind := KindOf(e.Code); {
		case !c.isSize(&e, s):
		case kind == TooBig || kind == TimedOut:
			bad, code = bad+e.Requests, e.Code
		case e.Code == "":
			good += e.Requests
		}
	}
	return bad, good, code
}

// leaveSize goes a size down at once when many requests of the present one fail as too big or time out.
func (c *Controller) leaveSize(s *Sample) bool {
	m := &c.memory.Chunk
	bad, good, code := c.ofThisSize(s)
	if bad == 0 || float64(bad) < manyTooBig*float64(bad+good) || c.size(s) == 1 {
		return false
	}
	timedOut, answered := KindOf(code) == TimedOut, c.lately(lookBack/2).requests > 0
	smaller := m.Trial.From > 0 && !m.Trial.Up
	if timedOut && (bad < 2 || smaller || c.now.Sub(m.LeftAt) < leftRest) {
		return false // they may have waited behind others, or there is an outage
	}
	m.Ceiling, m.LeftAt = c.size(s), c.now
	if timedOut && !answered && m.Trial.From == 0 {
		m.TooBig = hold{Until: c.now.Add(shortHold)} // it may be an outage
	} else {
		m.TooBig.fail(c.now, failHold, longestHold)
	}
	c.endTrials()
	return c.setChunk(sizeBelow(m.Ceiling), "%d of %d requests of this size failed (%s)", bad, bad+good, code)
}

// keepTime takes the largest size that should stay within the wanted time, when the present one does not and fewer
// requests at once do not help.
func (c *Controller) keepTime(s *Sample) bool {
	e, wanted := c.measure.sized, cmp.Or(s.ChunkTime, defaultChunkTime)
	if e.requests < 2 { // something else may keep requests small
		e = c.lately(min(c.measure.samples, lookBack))
	}
	if e.requests < 2 || e.service() <= wanted || e.items < 2*e.requests {
		return false
	}
	if c.keepTimeByFewer(s) {
		return true
	}
	to := sizeBelow(e.items / e.requests)
	for to > 1 && e.predict(to) > wanted*9/10 {
		to = sizeBelow(to)
	}
	c.endTrials()
	c.memory.Chunk.Up.fail(c.now, shortHold, longestHold)
	return c.setChunk(to, "a request takes %s, and %s is wanted", seconds(e.service()), seconds(wanted))
}

// keepTimeByFewer looks first whether it is the number of requests that makes them slow: it judges a step that is being
// tried, or tries half as many.
func (c *Controller) keepTimeByFewer(s *Sample) bool {
	m := &c.memory.InFlight
	switch {
	case !s.InFlightAuto || m.Trial.From == 0 && !m.Down.free(c.now):
		return false
	case m.Trial.From > 0 || !c.complete():
		return c.exploreInFlight(s) || c.limited(s)
	default:
		m.Stride = farStride
		return c.stepInFlight(false, s)
	}
}

// predict is how long a request of n items should take when the time goes by the items.
func (t *tally) predict(n int) time.Duration {
	return time.Duration(float64(t.service()) * float64(n) * float64(t.requests) / float64(t.items))
}

// exploreChunk judges the size that is being tried, or tries the next one. It reports whether it did.
func (c *Controller) exploreChunk(s *Sample) bool {
	m, e := &c.memory.Chunk, &c.measure.sized
	tried := m.Trial
	if !s.ChunkAuto || len(c.recent) < 3 || c.set.Rate > 0 && !c.limited(s) || e.window < minSized {
		return false
	}
	if tried.From > 0 && e.requests == 0 && c.measure.answered >= manyRequests {
		m.Trial = trial{}
		m.side(tried.Up).fail(c.now, sizeHold, longestHold)
		return c.setChunk(tried.From, "no request got to hold %d items: its bytes, or its run, allow fewer",
			c.set.Chunk)
	}
	if e.requests < fewSlow || e.requests < manyRequests && e.service() < slowRequest {
		return false
	}
	cost := (e.service() + overhead).Seconds() * float64(e.requests) / float64(e.items)
	if tried.From == 0 {
		return c.stepChunk(true, cost, s) || c.stepChunk(false, cost, s)
	}
	c.judgeChunk(cost, s)
	return true
}

// judgeChunk keeps a size, and goes on in its direction, or takes it back.
func (c *Controller) judgeChunk(cost float64, s *Sample) {
	m, tried := &c.memory.Chunk, c.memory.Chunk.Trial
	m.Trial = trial{}
	if cost > tried.Base*(1-betterBy) {
		m.side(tried.Up).fail(c.now, sizeHold, longestHold)
		c.setChunk(tried.From, "an item takes %s in requests of %d, %s in requests of %d", itemTime(cost), c.set.Chunk,
			itemTime(tried.Base), tried.From)
		return
	}
	*m.side(tried.Up) = hold{}
	m.side(!tried.Up).fail(c.now, sizeHold, longestHold) // it is where this came from
	if !c.stepChunk(tried.Up, cost, s) {
		c.beginMeasurement()
	}
}

// stepChunk tries the next size up or down, when it may be tried.
func (c *Controller) stepChunk(up bool, cost float64, s *Sample) bool {
	m, from := &c.memory.Chunk, c.set.Chunk
	to := sizeBelow(c.size(s))
	if up {
		to = sizeAbove(from)
		tooBig := m.Ceiling > 0 && to >= m.Ceiling && !m.TooBig.free(c.now)
		if tooBig || to > min(cmp.Or(s.ChunkMax, maxChunk), c.evenSize()) ||
			c.measure.sized.predict(to) > cmp.Or(s.ChunkTime, defaultChunkTime) {
			return false
		}
	}
	if !m.side(up).free(c.now) || !c.setChunk(to, "an item takes %s; whether requests of %d are better",
		itemTime(cost), to) {
		return false
	}
	m.Trial = trial{From: from, Up: up, Base: cost}
	return true
}

// chunkSizes are the sizes that are tried. The large ones cut a block without a rest.
func chunkSizes() []int { return []int{1, 2, 5, 10, 20, 50, 100, 200, 500, 1024, 2048, 4096, maxChunk} }

func sizeAbove(n int) int {
	for _, size := range chunkSizes() {
		if size > n {
			return size
		}
	}
	return maxChunk
}

func sizeBelow(n int) (below int) {
	for _, size := range chunkSizes() {
		if size < n {
			below = size
		}
	}
	return max(1, below)
}

// itemTime writes the time of an item for people.
func itemTime(s float64) string {
	if s < 1e-3 {
		return number(s*1e6) + " µs"
	}
	return number(s*1e3) + " ms"
}
