package pacing

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// ladder is the sizes that are tried.
func ladder() []int { return []int{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 8192} }

const (
	// overhead is what a request costs beside the time that a service works on it: claim, publish, fetch, record.
	overhead = 5 * time.Millisecond
	// betterBy is how much less time an item must take for another size to be kept.
	betterBy = 0.03
	// manyRequests and fewSlow are how many requests tell how long a size takes: quick ones, and slow ones.
	manyRequests = 24
	fewSlow      = 8
	// Which requests count as slow, and the least measurement of a chunk size.
	slow = time.Second
	// minSized is the least time of a measurement of requests of one size.
	minSized = 2 * time.Second
	// aboutSize is the least share of the wanted size that requests must have to tell about it.
	aboutSize = 0.7
	// manyTooBig is the share of requests of a size that must fail as too big for it to be left.
	manyTooBig = 0.3
	// sizeHold is how long a size is not tried again that was no better, failHold one that failed; both double.
	sizeHold    = 2 * time.Minute
	failHold    = 10 * time.Minute
	longestHold = 2 * time.Hour
)

// chunkMemory is what is known about sizes of requests.
type chunkMemory struct {
	Up   hold `json:"up"`
	Down hold `json:"down"`
	// Ceiling is a size that was too much, until TooBig is free again; 0: none.
	Ceiling int  `json:"ceiling,omitempty"`
	TooBig  hold `json:"too_big"`

	Trial trial `json:"trial,omitzero"`
}

// side is what keeps from trying one way.
func (m *chunkMemory) side(up bool) *hold {
	if up {
		return &m.Up
	}
	return &m.Down
}

// measureChunk adds up requests of about the size in force.
func (c *Controller) measureChunk(s *Sample) {
	for _, e := range s.Ended {
		if e.Code == "" && e.Requests > 0 && c.isSize(e.Items/e.Requests, s) {
			c.epoch.sized.add(tally{requests: e.Requests, items: e.Items, timed: e.Timed, took: e.Took,
				clocked: e.Clocked, stay: e.Stay})
		}
	}
	t := tallyOf(s)
	c.epoch.answered += t.requests
	c.epoch.sized.add(tally{window: t.window, samples: 1, inHands: t.inHands, live: t.live})
}

// size is how large requests may be at present.
func (c *Controller) size(s *Sample) int {
	return min(c.set.Chunk, cmp.Or(s.ChunkMax, DefaultChunkMax))
}

func (c *Controller) isSize(n int, s *Sample) bool {
	size := c.size(s)
	return float64(n) >= aboutSize*float64(size) && n <= size
}

// shrinkChunk leaves a size at once that services do not survive, or that takes longer than wanted.
func (c *Controller) shrinkChunk(s *Sample) bool {
	if !s.ChunkAuto {
		return false
	}
	m := &c.memory.Chunk
	bad, good, code := 0, 0, ""
	for _, e := range s.Ended {
		if e.Requests == 0 || !c.isSize(e.Items/e.Requests, s) {
			continue
		}
		switch kind := KindOf(e.Code); {
		case kind == TooBig || kind == TimedOut:
			bad, code = bad+e.Requests, e.Code
		case e.Code == "":
			good += e.Requests
		}
	}
	good += c.epoch.sized.requests
	if KindOf(code) == TimedOut && bad < 2 {
		bad = 0 // it may have waited behind others
	}
	if bad > 0 && float64(bad) >= manyTooBig*float64(bad+good) && c.size(s) > 1 {
		m.Ceiling = c.size(s)
		m.TooBig.Pause = min(max(failHold, 2*m.TooBig.Pause), longestHold)
		m.TooBig.Until = c.now.Add(m.TooBig.Pause)
		c.endTrial()
		return c.setChunk(rungBelow(c.size(s)), "%d of %d requests of this size failed (%s)", bad, bad+good, code)
	}
	return c.keepTime(s)
}

// keepTime takes the largest size that should stay within the wanted time, when the present one does not.
func (c *Controller) keepTime(s *Sample) bool {
	e, wanted := &c.epoch.sized, chunkTime(s)
	if e.requests < 2 { // something else may keep requests small
		all := c.lately(min(c.epoch.samples, lookBack))
		e = &all
	}
	if e.requests < 2 || e.service() <= wanted || e.items < 2*e.requests {
		return false
	}
	if c.fewer(s) {
		return true
	}
	to := 1
	for _, rung := range ladder() {
		if rung < e.items/e.requests && predict(e, rung) <= wanted*9/10 {
			to = rung
		}
	}
	c.endTrial()
	c.memory.Chunk.Up.fail(c.now, 0, longestHold)
	return c.setChunk(to, "a request takes %s, and %s is wanted", seconds(e.service()), seconds(wanted))
}

// fewer looks first whether it is the number of requests that makes them slow: it takes back a step up that is being
// tried, or tries half as many.
func (c *Controller) fewer(s *Sample) bool {
	if !s.InFlightAuto {
		return false
	}
	m := &c.memory.InFlight
	m.Started = true
	switch e := &c.epoch; {
	case m.Trial.From > 0 && m.Trial.Up:
		tried := m.Trial
		m.Trial = trial{}
		m.Up.fail(c.now, c.now.Sub(c.epoch.from), longHold)
		m.Stride = 0
		return c.setInFlight(tried.From, "a request takes %s, and %s is wanted", seconds(e.sized.service()),
			seconds(chunkTime(s)))
	case m.Trial.From > 0:
		return true // it is being found
	case !m.Down.free(c.now):
		return false
	case !e.complete:
		return c.limited(s)
	default:
		m.Plunge = true
		return c.step(false, e, s)
	}
}

func chunkTime(s *Sample) time.Duration { return cmp.Or(s.ChunkTime, DefaultChunkTime) }

// predict is how long a request of n items should take when the time goes by the items.
func predict(e *tally, n int) time.Duration {
	size := float64(e.items) / float64(e.requests)
	return time.Duration(float64(e.service()) * float64(n) / size)
}

// exploreChunk tries the sizes beside the present one. It reports whether something was done.
func (c *Controller) exploreChunk(s *Sample) bool {
	m, e := &c.memory.Chunk, &c.epoch.sized
	if !s.ChunkAuto || c.seen < 3 || c.set.Rate > 0 && !c.limited(s) || e.window < minSized {
		return false
	}
	if m.Trial.From > 0 && e.requests == 0 && c.epoch.answered >= manyRequests {
		return c.unreached()
	}
	if !enough(e) {
		return false
	}
	cost := costOf(e)
	if m.Trial.From > 0 {
		return c.judgeChunk(cost, s)
	}
	return c.tryChunk(cost, s)
}

// enough reports whether requests were as many as it takes to tell how long they take.
func enough(e *tally) bool {
	return e.requests >= manyRequests || e.requests >= fewSlow && e.service() >= slow
}

// costOf is the time of an item, in seconds.
func costOf(e *tally) float64 {
	return (e.service() + overhead).Seconds() * float64(e.requests) / float64(e.items)
}

// stayOf is how long an item is under way, in seconds by the items of its request: with as many requests under way, the
// throughput goes by it, with all that lies between service and node. 0: not known.
func stayOf(e *tally) float64 {
	if e.clocked == 0 {
		return 0
	}
	return e.sojourn().Seconds() * float64(e.requests) / float64(e.items)
}

func (c *Controller) judgeChunk(cost float64, s *Sample) bool {
	m := &c.memory.Chunk
	tried, here := m.Trial, c.set.Chunk
	m.Trial = trial{}
	side := m.side(tried.Up)
	stay := stayOf(&c.epoch.sized)
	if cost <= tried.Base*(1-betterBy) && (tried.Stay == 0 || stay <= tried.Stay) {
		side.clear()
		to := rungBelow(here)
		if tried.Up {
			to = c.foresee(tried, cost, s)
		}
		if !c.stepChunk(to, cost, s) {
			c.begin()
		}
		return true
	}
	if next := rungAbove(tried.From); tried.Up && here > next { // it was too far
		c.setChunk(next, "an item takes %s in requests of %d, %s in requests of %d; whether %d are better", fine(cost), here,
			fine(tried.Base), tried.From, next)
		m.Trial = tried
		return true
	}
	side.Pause = min(max(sizeHold, 2*side.Pause), longestHold)
	side.Until = c.now.Add(side.Pause)
	before, what := tried.Base, "takes"
	if cost <= before && stay > tried.Stay && tried.Stay > 0 {
		cost, before, what = stay, tried.Stay, "is under way for"
	}
	return c.setChunk(tried.From, "an item %s %s in requests of %d, %s in requests of %d", what, fine(cost), here,
		fine(before), tried.From)
}

func (c *Controller) tryChunk(cost float64, s *Sample) bool {
	m := &c.memory.Chunk
	return m.Up.free(c.now) && c.stepChunk(rungAbove(c.set.Chunk), cost, s) ||
		m.Down.free(c.now) && c.size(s) > 1 && c.stepChunk(rungBelow(c.size(s)), cost, s)
}

// foresee returns how far up it is worth to go, after a step up that paid: two sizes tell what a request costs beside
// its items. It is the next rung at least.
func (c *Controller) foresee(tried trial, cost float64, s *Sample) int {
	small, large := float64(tried.From), float64(c.set.Chunk)
	each := max(0, (cost*large-tried.Base*small)/(large-small))
	request := (tried.Base - each) * small
	to := rungAbove(c.set.Chunk)
	for before := to; ; before = to {
		next := rungAbove(before)
		was, is := each+request/float64(before), each+request/float64(next)
		wanted := time.Duration((each*float64(next) + request) * float64(time.Second))
		if next == before || is > was*(1-2*betterBy) || wanted > chunkTime(s)*8/10 || !c.mayTry(next, s) {
			return to
		}
		to = next
	}
}

// mayTry reports whether nothing forbids requests of n items.
func (c *Controller) mayTry(n int, s *Sample) bool {
	m := &c.memory.Chunk
	survived := m.Ceiling == 0 || n < m.Ceiling || m.TooBig.free(c.now)
	return survived && n <= min(cmp.Or(s.ChunkMax, DefaultChunkMax), c.evenSize())
}

// unreached takes a size back that requests do not get to: something else makes them smaller.
func (c *Controller) unreached() bool {
	m := &c.memory.Chunk
	tried, here := m.Trial, c.set.Chunk
	m.Trial = trial{}
	side := m.side(tried.Up)
	side.fail(c.now, sizeHold/restAfter, longestHold)
	return c.setChunk(tried.From, "no request got to hold %d items: its bytes, or its run, allow fewer", here)
}

// stepChunk tries another size, when it may be tried.
func (c *Controller) stepChunk(to int, cost float64, s *Sample) bool {
	m, from, stay := &c.memory.Chunk, c.set.Chunk, stayOf(&c.epoch.sized)
	up := to > from
	if up && (!c.mayTry(to, s) || predict(&c.epoch.sized, to) > chunkTime(s) && to == rungAbove(from)) {
		return false
	}
	if !c.setChunk(to, "an item takes %s; whether requests of %d are better", fine(cost), to) {
		return false
	}
	m.Trial = trial{From: from, Up: up, Base: cost, Stay: stay}
	return true
}

// forgetSizes lets sizes be tried again once the limit of requests under way has moved far: what was measured before
// was measured under another load.
func (c *Controller) forgetSizes(from int) {
	if ratio := float64(from) / float64(c.set.InFlight); math.Abs(math.Log2(ratio)) > 1 {
		c.memory.Chunk.Up.clear()
		c.memory.Chunk.Down.clear()
	}
}

func rungBelow(n int) int {
	rungs := ladder()
	i, _ := slices.BinarySearch(rungs, n)
	return rungs[max(0, i-1)]
}

func rungAbove(n int) int {
	rungs := ladder()
	i, found := slices.BinarySearch(rungs, n)
	if found {
		i++
	}
	return rungs[min(i, len(rungs)-1)]
}

// fine writes the time of an item for people.
func fine(s float64) string {
	switch {
	case s >= 1:
		return number(s) + " s"
	case s >= 1e-3:
		return number(s*1e3) + " ms"
	default:
		return number(s*1e6) + " µs"
	}
}
