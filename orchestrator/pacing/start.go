package pacing

import "time"

const (
	// startPays is how much more throughput twice as many requests must bring for the start to go on, and startGain
	// the least that lets it stay where it is whatever else they bring.
	startPays = 1.3
	startGain = 1.1
	// startSlower is how much longer services work on a request when it is the number of requests that slows them.
	startSlower = 1.4
	// startQuick is how soon requests must be answered for the first step to be twice as large: should services not do
	// more at once, they are answered soon still.
	startQuick = 125 * time.Millisecond
	// startOld is the share of what ended in a sample that may be from before the last step.
	startOld = 0.3
	// startFalls is what is left of the throughput with twice as many requests where it may be fewer that are better, and
	// startFewer how much more half as many must bring for the next half to be tried.
	startFalls = 0.9
	startFewer = 1.05
)

// beginning is the slow start of an endpoint of which nothing is known: it doubles while doubling pays.
type beginning struct {
	from    int           // the limit before the last step; 0: there was none
	sojourn time.Duration // of a request, before it
	service time.Duration
	down    bool  // the last step was one down
	sum     tally // since what was under way at the step has ended
}

// grow doubles the limit of an endpoint of which nothing is known, as long as that brings more throughput. By Little's
// law the throughput is the requests under way by the time that each is, so it takes no long measurement: as many
// requests as are under way, begun after the step, tell. It reports whether nothing else is to be tried meanwhile.
func (c *Controller) grow(t *tally, s *Sample) bool {
	m, b := &c.memory.InFlight, &c.start
	if m.Started || !s.InFlightAuto {
		return false
	}
	if t.refused > 0 || t.timedOut > 0 {
		m.Started = true
		return false
	}
	if !c.limited(s) {
		m.Started = s.Demand && b.from > 0 && t.requests > 0 // something else bounds the throughput
		b.sum = tally{}
		return false
	}
	if b.counts(&c.epoch, t) {
		b.sum.add(*t)
	}
	if n := c.limit(s); b.sum.requests < n || b.sum.sojourn() <= 0 {
		return true
	}
	switch {
	case b.down:
		b.goesDown(c, s)
		return true
	case b.from > 0 && !c.goesOn(b):
		return true
	}
	return c.double(b, s)
}

// double makes the next step of the start, unless requests wait already or there is no room for more.
func (c *Controller) double(b *beginning, s *Sample) bool {
	from, sojourn := c.set.InFlight, b.sum.sojourn()
	to := 2 * from
	if b.from == 0 && sojourn < startQuick {
		to = 4 * from
	}
	if s.Ceiling > 0 && from >= s.Ceiling || b.sum.waited() > wantedWait ||
		!c.setInFlight(to, "nothing is known yet; requests are answered in %s, and more waits", seconds(sojourn)) {
		c.memory.InFlight.Started = true
		return false
	}
	*b = beginning{from: from, sojourn: sojourn, service: b.sum.service()}
	return true
}

// counts reports whether what ended in a sample was begun after the last step. After a step down what is from before it
// took longer by far.
func (b *beginning) counts(e *epoch, t *tally) bool {
	return b.from == 0 || e.samples > 0 || !b.down && float64(e.before) <= startOld*float64(t.requests)
}

// gain is by what the last step of the start has multiplied the throughput.
func (b *beginning) gain(c *Controller) float64 {
	return float64(c.set.InFlight) / float64(b.from) * b.sojourn.Seconds() / b.sum.sojourn().Seconds()
}

// goesOn judges the last step of the start. One that brought nothing, and made services slower or requests wait, is
// taken back; where it even cost something, fewer than before it may be better still.
func (c *Controller) goesOn(b *beginning) bool {
	gain := b.gain(c)
	c.memory.InFlight.Started = gain < startPays
	slower := b.sum.service().Seconds() > startSlower*b.service.Seconds()
	if before := *b; gain < startFalls && slower && before.from > 1 {
		c.memory.InFlight.Started = false
		c.memory.InFlight.Up.fail(c.now, 0, longHold)
		halve(c, before.from, before.sojourn, before.service, "with %d a request takes %s, with %d it took %s; whether half "+
			"of that is better", c.set.InFlight, seconds(b.sum.sojourn()), before.from, seconds(before.sojourn))
		return false
	}
	if gain < startGain && (slower || b.sum.waited() > wantedWait) {
		c.setInFlight(b.from, "with %d a request takes %s, with %d it took %s", c.set.InFlight,
			seconds(b.sum.sojourn()), b.from, seconds(b.sojourn))
	}
	return gain >= startPays
}

// waited is how long a request was under way without a service working on it.
func (t *tally) waited() time.Duration { return max(0, t.sojourn()-t.service()) }

// halve tries half of a limit with which requests were under way for so long.
func halve(c *Controller, from int, sojourn, service time.Duration, reason string, args ...any) {
	c.setInFlight(from/2, reason, args...)
	c.start = beginning{from: from, sojourn: sojourn, service: service, down: true}
}

// goesDown judges a step down of the start.
func (b *beginning) goesDown(c *Controller, s *Sample) {
	m, here, before, gain := &c.memory.InFlight, c.set.InFlight, *b, b.gain(c)
	switch {
	case gain >= startFewer && here > 1:
		m.Fewer = here < s.Places
		halve(c, here, before.sum.sojourn(), before.sum.service(), "a request takes %s, with %d it took %s; whether fewer "+
			"are better still", seconds(before.sum.sojourn()), before.from, seconds(before.sojourn))
		return
	case gain < 1:
		c.setInFlight(before.from, "with %d a request takes %s, with %d it took %s", here, seconds(before.sum.sojourn()),
			before.from, seconds(before.sojourn))
	}
	m.Started = true
	c.start = beginning{}
}
