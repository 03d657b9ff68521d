package autotune

import "time"

const (
	// A measurement begins once 1.5 times the requests in flight at a change have ended, within these limits.
	minSettle = time.Second
	maxSettle = 30 * time.Second
	// minMeasure is the least time of a measurement, or longMeasure with fewer requests.
	minMeasure  = 3 * time.Second
	longMeasure = 30 * time.Second
	fewRequests = 10
	// bound is the share of the limit that must be in flight for the limit to limit the throughput.
	bound = 0.7
	// shortHold is the shortest hold of a step that did not pay.
	shortHold = 15 * time.Second
	// restAfter is the hold of such a step, as a multiple of its trial's time.
	restAfter = 5
)

type search struct {
	Up    hold  `json:"up"`
	Down  hold  `json:"down"`
	Trial trial `json:"trial,omitzero"`
}

// trial is a step that is kept only if it pays.
type trial struct {
	From int     `json:"from"` // the previous setting; 0: no trial
	Up   bool    `json:"up"`
	Base float64 `json:"base"` // to be improved: items per second, or seconds per item
}

type hold struct {
	Until time.Time     `json:"until,omitzero"`
	Pause time.Duration `json:"pause,omitempty"`
}

func (h *hold) free(now time.Time) bool { return !now.Before(h.Until) }

// fail notes that a step did not pay. The pause doubles, within least and longest.
func (h *hold) fail(now time.Time, least, longest time.Duration) {
	h.Pause = min(max(least, 2*h.Pause), longest)
	h.Until = now.Add(h.Pause)
}

func (m *search) side(up bool) *hold {
	if up {
		return &m.Up
	}
	return &m.Down
}

func (c *Controller) abandon() {
	inFlight, chunk := c.memory.InFlight.Trial.From, c.memory.Chunk.Trial.From
	c.endTrials()
	if inFlight > 0 {
		c.setInFlight(inFlight, "what was tried was not finished")
	}
	if chunk > 0 {
		c.setChunk(chunk, "what was tried was not finished")
	}
}

func (c *Controller) endTrials() { c.memory.InFlight.Trial, c.memory.Chunk.Trial = trial{}, trial{} }

// explore judges what is being tried, or tries something, when a measurement is complete.
func (c *Controller) explore(s *Sample) {
	m := &c.memory
	switch {
	case m.InFlight.Trial.From > 0:
		c.exploreInFlight(s)
	case m.Chunk.Trial.From > 0:
		c.exploreChunk(s)
	case c.starting() && c.limited(s) && s.InFlightAuto:
		c.exploreInFlight(s) // a far better limit precedes a better size
	case c.chunkNext && c.measure.sum.service() < maxWait:
		c.chunkNext = !c.exploreChunk(s) && !c.exploreInFlight(s)
	default: // where requests take long, so does each trial: try fewer first
		c.chunkNext = c.exploreInFlight(s) || !c.exploreChunk(s)
	}
}

type measurement struct {
	from     time.Time
	before   int   // requests that must end before it counts
	settled  bool  // it counts
	samples  int   // since it counts
	sum      tally // while the limit limited the throughput
	sized    tally // requests of about the present chunk, regardless of that
	answered int   // requests of any size
}

func (c *Controller) beginMeasurement() {
	last := c.lately(1)
	c.measure = measurement{from: c.now, before: (last.live + last.others) * 3 / 2}
}

func (c *Controller) measureAgain() { c.measure = measurement{from: c.now, settled: true} }

func (c *Controller) measureSample(t *tally, s *Sample) {
	e := &c.measure
	first := e.from.IsZero()
	if first {
		e.from = c.now
	}
	if !e.settled { // it is, starting with the next sample
		since := c.now.Sub(e.from)
		e.before -= t.requests + t.failed
		e.settled = first || since >= maxSettle || e.before <= 0 && since >= minSettle
		return
	}
	e.samples++
	e.answered += t.requests
	sized := tally{window: t.window, samples: 1, inHands: t.inHands, live: t.live}
	for _, x := range s.Ended {
		if x.Code == "" && c.isSize(&x, s) {
			sized.requests, sized.items = sized.requests+x.Requests, sized.items+x.Items
			sized.timed, sized.took = sized.timed+x.Timed, sized.took+x.Took
		}
	}
	e.sized.add(sized)
	if c.limited(s) {
		e.sum.add(*t)
	}
}

// complete reports whether the measurement suffices to judge the limit of requests in flight.
func (c *Controller) complete() bool {
	sum, n := &c.measure.sum, c.set.InFlight
	switch {
	case c.starting():
		return sum.requests >= max(n, 4)
	case sum.window >= longMeasure:
		return sum.requests >= max(fewRequests, n/2)
	default:
		return sum.window >= minMeasure && sum.requests >= max(fewRequests, 2*n)
	}
}

// limited reports whether the limit of requests in flight limits the throughput.
func (c *Controller) limited(s *Sample) bool {
	return s.Demand && float64(s.Live) >= bound*float64(c.limit(s))
}

func (c *Controller) limit(s *Sample) int {
	if s.Ceiling > 0 {
		return min(c.set.InFlight, s.Ceiling)
	}
	return c.set.InFlight
}
