package autotune

import (
	"math"
	"time"
)

const (
	// A queue longer than maxWait is cut to wantedWait, with which services never idle.
	maxWait    = time.Second
	wantedWait = maxWait / 2
	// manyTimeOuts is the share of requests that must time out for a cut. Single bad items also time out.
	manyTimeOuts = 0.2
	timeOutRest  = 5 * time.Second
	// atWork is the share of requests in flight that services must be processing for fewer to be tried.
	atWork = 0.85
	// worthwhile is the share of a raise that must appear as throughput for it to be kept.
	worthwhile = 0.12
	// harmless is the least remaining throughput for a step down to be kept, idlePays if it leaves capacity idle.
	harmless = 0.98
	idlePays = 1.03
	// idleAfter is how long an endpoint is paced before trials may leave capacity of services idle.
	idleAfter = time.Minute
	// quick is the longest time of a request with which a queue of 16 ends soon.
	quick = 50 * time.Millisecond
	// farStride is the factor of a step while nothing is known, nearStride otherwise.
	farStride  = 2.0
	nearStride = 1.3
	// startPays is the gain of a far step up for the next to be as far, startFewer that of one down. Below startFalls
	// after a step up, half as many are tried instead.
	startPays  = 1.3
	startFewer = 1.05
	startFalls = 0.9
	longHold   = 5 * time.Minute
	// credible is the highest concurrency of services that is believed: above it, something else limits it.
	credible = 64
)

type inFlightMemory struct {
	search
	Stride float64   `json:"stride,omitempty"`
	CutAt  time.Time `json:"cut_at,omitzero"` // last cut after timeouts
	// Fewer is the reported concurrency at which fewer were found to be better; 0: none.
	Fewer int `json:"fewer,omitempty"`
}

// starting reports whether steps are far: then a short measurement is enough.
func (c *Controller) starting() bool { return c.memory.InFlight.Stride >= farStride }

// filled returns how many requests keep all capacity of services busy, including some in transit; 0: unknown.
func (s *Sample) filled() int {
	if s.Places <= 0 || s.Places > credible {
		return 0
	}
	return s.Places + (s.Places+3)/4
}

// fillPlaces uses the concurrency that services report. While there is demand, it fills idle capacity, unless fewer
// were better, or there are timeouts or refusals.
func (c *Controller) fillPlaces(s *Sample) bool {
	m, n := &c.memory.InFlight, s.filled()
	if n == 0 || c.fresh {
		return n > 0 && c.beginSlow(s)
	}
	down := m.Trial.From > 0 && !m.Trial.Up
	if c.set.InFlight >= n || m.Fewer == s.Places || down || !s.Demand || s.Queued > 0 || s.InHands >= s.Places {
		return false
	}
	if t := c.lately(lookBack); t.timedOut > 0 || t.refused > 0 || c.set.Rate > 0 || c.now.Sub(m.CutAt) < timeOutRest {
		return false
	}
	c.abandon()
	return c.setInFlight(n, "services report room for %d concurrent requests, hold %d, and more wait", s.Places,
		s.InHands)
}

// beginSlow begins with twice the reported concurrency, once an unknown endpoint proves to take long.
func (c *Controller) beginSlow(s *Sample) bool {
	t := c.lately(1)
	c.fresh = t.requests == 0
	return t.service() > quick && 2*s.Places < c.set.InFlight && c.setInFlight(
		2*s.Places, "a request takes %s; services report room for %d concurrent requests", seconds(t.service()), s.Places)
}

// backOff cuts the limit by a third when many requests time out. Then the search takes far steps again.
func (c *Controller) backOff() bool {
	m, t := &c.memory.InFlight, c.lately(lookBack)
	all := t.requests + t.failed
	if t.timedOut < 2 || float64(t.timedOut) < manyTimeOuts*float64(all) || c.now.Sub(m.CutAt) < timeOutRest {
		return false
	}
	c.recent = nil // each timeout counts once
	c.abandon()
	*m = inFlightMemory{Stride: farStride, CutAt: c.now}
	return c.setInFlight(c.set.InFlight*2/3, "%d of %d requests ran out of time", t.timedOut, all)
}

// shortenQueue removes what only waits. With other runs at the endpoint, the controller keeps at least half.
func (c *Controller) shortenQueue(s *Sample) bool {
	t := c.lately(min(c.measure.samples, lookBack))
	// What ends in a window began before it, so slow requests need a long one.
	t = c.lately(min(c.measure.samples, max(lookBack, int(4*t.service().Seconds()))))
	wait, busy := t.wait(), t.busy()
	if wait <= maxWait || t.requests < fewRequests || t.window < 2*t.service() {
		return false
	}
	each := float64(t.requests) / t.window.Seconds()
	if float64(s.Queued+s.InHands) <= busy+each*maxWait.Seconds() {
		return false // it has already shortened
	}
	n := busy + each*wantedWait.Seconds()
	limit := int(math.Ceil(max(n-float64(s.Others), min(n, n/2+1)))) + 1
	if limit >= c.set.InFlight {
		return false
	}
	c.memory.InFlight.Stride = nearStride
	c.endTrials()
	return c.setInFlight(limit, "requests wait %s in the queue, services work on %s", seconds(wait), number(busy))
}

// exploreInFlight judges the step being tried, or tries one. It reports whether it did.
func (c *Controller) exploreInFlight(s *Sample) bool {
	m := &c.memory.InFlight
	if !s.InFlightAuto || !c.complete() {
		return false
	}
	if m.Trial.From > 0 {
		c.judgeInFlight(s)
		return true
	}
	first := c.measure.sum.service() < maxWait // where requests take long, try fewer first
	for _, up := range []bool{first, !first} {
		if m.side(up).free(c.now) && c.stepInFlight(up, s) {
			return true
		}
	}
	m.Stride = nearStride
	c.measureAgain()
	return false
}

// stepInFlight tries a step up when hardly anything waits, or down when services process nearly all in flight.
func (c *Controller) stepInFlight(up bool, s *Sample) bool {
	m, sum, from := &c.memory.InFlight, &c.measure.sum, c.limit(s)
	base := sum.throughput()
	if up {
		wait := maxWait / 10
		if c.starting() {
			wait = wantedWait
		}
		to := max(from+1, int(math.Round(float64(from)*m.Stride)))
		if s.Ceiling > 0 && from >= s.Ceiling || sum.wait() > wait || !c.setInFlight(to,
			"services work on %s concurrently and more wait; %s items/s so far", number(sum.busy()), number(base)) {
			return false
		}
	} else {
		to := min(from-1, int(math.Round(float64(from)/m.Stride)))
		idle := to < s.Places && s.filled() > 0 && c.now.Sub(c.began) < idleAfter
		if to < 1 || idle || sum.busy() < atWork*float64(from) || !c.setInFlight(to,
			"a request takes %s; trying whether fewer in flight are faster: %s items/s so far", seconds(sum.service()),
			number(base)) {
			return false
		}
	}
	m.Trial = trial{From: from, Up: up, Base: base}
	return true
}

// judgeInFlight keeps a step, and continues in its direction, or undoes it.
func (c *Controller) judgeInFlight(s *Sample) {
	m, here, took := &c.memory.InFlight, c.set.InFlight, c.now.Sub(c.measure.from)
	tried, least, wanted := m.Trial, max(shortHold, restAfter*took), harmless
	m.Trial = trial{}
	gain := c.measure.sum.throughput() / tried.Base
	switch {
	case tried.Up && c.measure.sum.timedOut > 0:
		gain = 0
	case tried.Up:
		wanted = 1 + worthwhile*(float64(here)/float64(tried.From)-1)
	case here < s.Places && s.filled() > 0:
		wanted, least = idlePays, longHold
	}
	if gain >= wanted {
		c.keepInFlight(tried.Up, gain, least, s)
		return
	}
	m.side(tried.Up).fail(c.now, least, longHold)
	reason := "%s items/s with %d, %s with %d"
	args := []any{number(gain * tried.Base), here, number(tried.Base), tried.From}
	if c.starting() && tried.Up && gain < startFalls && tried.From > 1 {
		c.setInFlight(tried.From/2, reason+"; whether half of that is better", args...)
		m.Trial = trial{From: tried.From, Base: tried.Base}
		return
	}
	m.Stride = nearStride
	c.setInFlight(tried.From, reason, args...)
}

// keepInFlight continues in a direction that paid. A step down without a gain only relieves services: the next waits.
func (c *Controller) keepInFlight(up bool, gain float64, least time.Duration, s *Sample) {
	m, side := &c.memory.InFlight, c.memory.InFlight.side(up)
	goesOn := up && gain >= startPays || !up && gain >= startFewer
	if up || goesOn {
		*side = hold{}
	} else {
		side.fail(c.now, least, longHold)
	}
	if !up && c.set.InFlight < s.Places {
		m.Fewer = s.Places
	}
	if c.starting() && !goesOn {
		m.Stride = nearStride
	} else {
		m.Stride = min(farStride, m.Stride*1.25)
	}
	if !side.free(c.now) || !c.stepInFlight(up, s) {
		c.measureAgain()
	}
}
