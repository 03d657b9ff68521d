package autotune

import (
	"cmp"
	"time"
)

const (
	// overhead is the cost of a request besides the service's time: claim, publish, fetch, record.
	overhead = 5 * time.Millisecond
	// betterBy is the least relative gain of time per item for another size to be kept.
	betterBy = 0.03
	// manyRequests are enough to measure a size, or fewSlow if each takes at least slowRequest.
	manyRequests = 24
	fewSlow      = 8
	slowRequest  = time.Second
	minSized     = 2 * time.Second
	// aboutSize is the least share of the chunk that a request must hold to count for its size.
	aboutSize = 0.7
	// manyTooBig is the share of requests of a size that must be too big for it to be left.
	manyTooBig = 0.3
	// sizeHold is how long a size that was no better is not retried, failHold one that failed; both double.
	sizeHold    = 3 * time.Minute
	failHold    = 10 * time.Minute
	longestHold = 2 * time.Hour
	// leftRest is how long after leaving a size timeouts of a smaller one are ignored.
	leftRest = 30 * time.Second
)

type chunkMemory struct {
	search
	// Ceiling is a size that failed, and is not tried until TooBig is free; 0: none.
	Ceiling int       `json:"ceiling,omitempty"`
	TooBig  hold      `json:"too_big"`
	LeftAt  time.Time `json:"left_at,omitzero"`
}

func (c *Controller) size(s *Sample) int { return min(c.set.Chunk, cmp.Or(s.ChunkMax, maxChunk)) }

// isSize reports whether requests count for the present size.
func (c *Controller) isSize(e *Ended, s *Sample) bool {
	size := c.size(s)
	return e.Requests > 0 && float64(e.Items) >= aboutSize*float64(size*e.Requests) && e.Items <= size*e.Requests
}

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

// leaveSize takes the next smaller size when many requests of the present one fail as too big or time out.
func (c *Controller) leaveSize(s *Sample) bool {
	m := &c.memory.Chunk
	bad, good, code := c.ofThisSize(s)
	if bad == 0 || float64(bad) < manyTooBig*float64(bad+good) || c.size(s) == 1 {
		return false
	}
	timedOut, answered := KindOf(code) == TimedOut, c.lately(lookBack/2).requests > 0
	smaller := m.Trial.From > 0 && !m.Trial.Up
	if timedOut && (bad < 2 || smaller || c.now.Sub(m.LeftAt) < leftRest) {
		return false // they may have queued, or there is an outage
	}
	m.Ceiling, m.LeftAt = c.size(s), c.now
	if timedOut && !answered && m.Trial.From == 0 {
		m.TooBig = hold{Until: c.now.Add(shortHold)} // possibly an outage
	} else {
		m.TooBig.fail(c.now, failHold, longestHold)
	}
	c.endTrials()
	return c.setChunk(sizeBelow(m.Ceiling), "%d of %d requests of this size failed (%s)", bad, bad+good, code)
}

// keepTime takes the largest size expected within the wanted time, unless fewer requests in flight help.
func (c *Controller) keepTime(s *Sample) bool {
	e, wanted := c.measure.sized, cmp.Or(s.ChunkTime, defaultChunkTime)
	if e.requests < 2 { // requests may be small for another reason
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

// keepTimeByFewer tests whether fewer requests are faster: it judges the present trial, or halves the limit.
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

// predict returns the expected time of a request of n items, proportional to the items.
func (t *tally) predict(n int) time.Duration {
	return time.Duration(float64(t.service()) * float64(n) * float64(t.requests) / float64(t.items))
}

// exploreChunk judges the size being tried, or tries another. It reports whether it did.
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

// judgeChunk keeps a size, and continues in its direction, or undoes it.
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
	m.side(!tried.Up).fail(c.now, sizeHold, longestHold) // that size was just tried
	if !c.stepChunk(tried.Up, cost, s) {
		c.beginMeasurement()
	}
}

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

// chunkSizes are the sizes tried. The large ones divide a block evenly.
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

func itemTime(s float64) string {
	if s < 1e-3 {
		return number(s*1e6) + " µs"
	}
	return number(s*1e3) + " ms"
}
