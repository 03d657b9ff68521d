package pacing

import "time"

const (
	// credible is up to how many requests at once services are believed to work on because they say so. One that says
	// more says that something else bounds it.
	credible = 64
	// spare is the part of the places beyond which requests are under way, so that no place waits for the next one.
	spare = 4
	// tiny is the part of the wanted size below which requests say nothing about those of that size: a canary's, or the
	// last of a run.
	tiny = 10
	// tinyFor is how long requests of less than a tenth of the wanted size teach nothing; should they go on, they are
	// what there is.
	tinyFor = 10 * time.Second
	// fewerAfter is how long an endpoint is paced before it is tried whether fewer requests than services have places for
	// are better: those places are idle meanwhile.
	fewerAfter = time.Minute
)

// filled is how many requests have to be under way for all places of services to be at work; 0: not known.
func (s *Sample) filled() int {
	if s.Places <= 0 || s.Places > credible {
		return 0
	}
	return s.Places + (s.Places+spare-1)/spare
}

// meet notes how many places services have. Where there are others than before, what was tried is void.
func (c *Controller) meet(s *Sample) {
	m := &c.memory.InFlight
	sized := c.placed == c.set.Chunk // of a service that works item by item the places go by the size of requests
	c.placed = c.set.Chunk
	if s.Places == 0 || s.Places == m.Places {
		return
	}
	if m.Places > 0 && sized {
		m.Up.clear()
		m.Down.clear()
		c.memory.Chunk.Up.clear()
		c.memory.Chunk.Down.clear()
	}
	m.Places, m.Fewer = s.Places, false
}

// guess begins an endpoint of which nothing is known with what its services say: each place works on one request, and
// has the next one at hand.
func (c *Controller) guess(s *Sample) bool {
	n := 2 * s.Places
	c.fresh = c.fresh && c.start.from == 0 // what was seen since tells more
	if !c.fresh || s.filled() == 0 || !s.InFlightAuto {
		return false
	}
	c.fresh = false
	return n < c.set.InFlight &&
		c.setInFlight(n, "nothing is known yet, but services say that they work on %d requests at once", s.Places)
}

// fill has as many requests under way as services say they work on, while some of their places are idle and there is
// more to do: unless fewer were found to be better, or something is amiss. What an outage or the end of a run has left
// of the limit does not count.
func (c *Controller) fill(s *Sample) bool {
	m := &c.memory.InFlight
	n := s.filled()
	down := m.Trial.From > 0 && !m.Trial.Up || c.start.down
	if n == 0 || c.set.InFlight >= n || m.Fewer || down || !s.Demand || s.Queued > 0 || s.InHands >= s.Places {
		return false
	}
	if t := c.lately(lookBack); t.timedOut > 0 || t.refused > 0 || c.set.Rate > 0 || c.now.Sub(m.CutAt) < timeOutRest {
		return false
	}
	c.abandon()
	m.Before = 0
	return c.setInFlight(n, "services say that they work on %d requests at once, they hold %d, and more waits", s.Places,
		s.InHands)
}

// tinies knows since when requests have been tiny.
type tinies struct {
	since time.Time // zero: they are not
	limit int       // what the limit was before something was learned from them; 0: nothing was
}

// tooSmall reports whether what was seen is of requests so small that they say nothing about those of the wanted size.
func (x *tinies) tooSmall(c *Controller, t *tally, s *Sample) bool {
	size := c.size(s)
	switch {
	case t.requests == 0:
		return !x.since.IsZero() && x.limit == 0
	case t.items*tiny > t.requests*size:
		if x.limit > 0 {
			x.unlearn(c)
		}
		*x = tinies{}
		return false
	case x.since.IsZero():
		x.since = c.now
	case c.now.Sub(x.since) > tinyFor && x.limit == 0:
		x.limit = c.set.InFlight
	}
	return x.limit == 0
}

// unlearn begins anew with what was in force before requests became tiny.
func (x *tinies) unlearn(c *Controller) {
	c.abandon()
	c.memory.InFlight = inFlightMemory{Places: c.memory.InFlight.Places}
	c.setInFlight(x.limit, "requests are large again; what small ones have taught is forgotten")
	c.epoch = epoch{}
}
