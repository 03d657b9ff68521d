package pacing

import (
	"math"
	"time"
)

const (
	// wantedWait is what is left of the queue when it is shortened: enough for services never to wait.
	wantedWait = time.Second / 2
	// stalledFor is after how long without any answer the queue is shortened to what services hold.
	stalledFor = 4 * time.Second
	// manyTimeOuts is the share of requests that must run out of time for it to be too much at once. A bad item times
	// out, too, and is no reason.
	manyTimeOuts = 0.2
	// timeOutRest is the least time between two cuts.
	timeOutRest = 5 * time.Second
	// dry is which part of the longest wanted wait counts as none.
	dry = 10
	// atWork is the share of requests under way that services must be working on for their number to matter to them.
	atWork = 0.85
	// easy is up to how many requests more may be tried even when services do not work on all of them: they may be on
	// their way to services, or their replies on the way back.
	easy = 64
	// muchBetter is how much more throughput with fewer requests says that they were far too many.
	muchBetter = 1.1
	// worthwhile is which part of a raise must be seen in the throughput for it to be kept.
	worthwhile = 0.12
	// harmless is how much of the throughput must be left for a step down to be kept.
	harmless = 0.98
	// shortHold and longHold bound how long nothing is tried in a direction after it did not pay.
	shortHold = 15 * time.Second
	longHold  = 5 * time.Minute
	// restAfter is how many times as long as a trial took that did not pay it is not made again.
	restAfter = 5
	// changedBy is how much the time that services take must change for what was tried before to be void.
	changedBy = 0.3
)

// inFlightMemory is what is known about the limit of requests under way.
type inFlightMemory struct {
	Up   hold `json:"up"`
	Down hold `json:"down"`
	// Stride is by what the next step up multiplies: it grows while steps pay.
	Stride float64 `json:"stride,omitempty"`
	// Plunge says that the last step down brought so much that the next may be a large one.
	Plunge bool `json:"plunge,omitempty"`
	// Before is what the limit was before time-outs cut it; 0: they have not.
	Before int       `json:"before,omitempty"`
	CutAt  time.Time `json:"cut_at,omitzero"`
	// Service is the time that services took for a request, in seconds, when a step had been judged.
	Service float64 `json:"service,omitempty"`
	// Places is how many requests services said they work on at once, Fewer that fewer were found to be better then.
	Places int  `json:"places,omitempty"`
	Fewer  bool `json:"fewer,omitempty"`

	// Started says that the slow start is over.
	Started bool `json:"started,omitempty"`

	Trial trial `json:"trial,omitzero"`
}

// hold keeps from trying again and again what did not pay.
type hold struct {
	Until time.Time     `json:"until,omitzero"`
	Pause time.Duration `json:"pause,omitempty"`
}

func (h *hold) free(now time.Time) bool { return !now.Before(h.Until) }

// fail notes that it did not pay: the next time is later, and the later the longer it took to see that.
func (h *hold) fail(now time.Time, took, longest time.Duration) {
	h.Pause = min(max(shortHold, restAfter*took, 2*h.Pause), longest)
	h.Until = now.Add(h.Pause)
}

func (h *hold) clear() { *h = hold{} }

// trial is a step that is kept only when it pays.
type trial struct {
	From int     `json:"from"` // the setting before it; 0: there is none
	Up   bool    `json:"up"`   // which way it went
	Base float64 `json:"base"` // what is to be bettered: items a second, or seconds an item
	// Service is how long services took for a request before it, in seconds.
	Service float64 `json:"service,omitempty"`
	// Stay is for how long an item was under way before it, in seconds by the items of its request; 0: not known.
	Stay float64 `json:"stay,omitempty"`
}

func (c *Controller) endTrial() {
	c.memory.InFlight.Trial = trial{}
	c.memory.Chunk.Trial = trial{}
}

// abandon ends what is being tried because something else has come in between. A size that was not judged is taken
// back.
func (c *Controller) abandon() {
	before := c.memory.Chunk.Trial.From
	c.endTrial()
	if before > 0 {
		c.setChunk(before, "what was tried was not finished")
	}
}

// backOff cuts the limit by a third when many requests run out of time.
func (c *Controller) backOff() bool {
	m := &c.memory.InFlight
	t := c.lately(lookBack)
	all := t.requests + t.failed
	if t.timedOut < 2 || float64(t.timedOut) < manyTimeOuts*float64(all) || c.now.Sub(m.CutAt) < timeOutRest {
		return false
	}
	// Each time-out counts once.
	c.seen = 0
	m.CutAt = c.now
	m.Before = max(m.Before, c.set.InFlight)
	c.abandon()
	return c.setInFlight(c.set.InFlight*2/3, "%d of %d requests ran out of time", t.timedOut, all)
}

// regain goes back up, in large steps, to where time-outs cut the limit once they have stopped.
func (c *Controller) regain(s *Sample) bool {
	m := &c.memory.InFlight
	if m.Before == 0 {
		return false
	}
	t := c.lately(lookBack)
	if c.set.InFlight >= m.Before || t.timedOut == 0 && t.requests >= fewRequests && c.now.Sub(m.CutAt) > time.Minute {
		m.Before = 0
		return false
	}
	if !c.epoch.settled || t.timedOut > 0 || t.requests < fewRequests || !c.limited(s) ||
		t.wait() > c.cfg.MaxWait/2 {
		return false
	}
	return c.setInFlight(min(2*c.set.InFlight, m.Before), "no request runs out of time any more, %s were answered in %s",
		number(float64(t.requests)), seconds(t.window))
}

// shorten takes away what only waits in the queue.
func (c *Controller) shorten(s *Sample) bool {
	m := &c.memory.InFlight
	if c.epoch.stalled >= stalledFor && s.Live > s.InHands {
		// It is not what services can do, and is taken back when they answer again.
		before, cut := m.Before, m.CutAt
		m.Before, m.CutAt = max(m.Before, c.set.InFlight), c.now
		if c.shortenTo(s, float64(s.InHands), "no request was answered for %s, services hold %d and %d wait",
			seconds(c.epoch.stalled), s.InHands, s.Queued) {
			return true
		}
		m.Before, m.CutAt = before, cut
		return false
	}
	t := c.sinceChange()
	wait, busy := t.wait(), t.busy()
	if wait <= c.cfg.MaxWait || t.requests < fewRequests || t.window < 2*t.service() {
		return false
	}
	if now := tallyOf(s); float64(now.queued+now.inHands) <= busy+t.perSecond(t.requests)*c.cfg.MaxWait.Seconds() {
		return false // it has become shorter by itself
	}
	return c.shortenTo(s, busy+t.perSecond(t.requests)*wantedWait.Seconds(),
		"requests wait %s in the queue, services work on %s", seconds(wait), number(busy))
}

// sinceChange adds up the latest samples in which the settings are seen, enough of them to tell how much services do at
// once: what ends in a window was begun before it.
func (c *Controller) sinceChange() tally {
	t := c.lately(min(c.epoch.samples, lookBack))
	return c.lately(min(c.epoch.samples, max(lookBack, int(4*t.service().Seconds()))))
}

// shortenTo lowers the limit so that no more than n requests are under way at the endpoint. Where runs with limits of
// their own share it, the controller's keep half at least.
func (c *Controller) shortenTo(s *Sample, n float64, reason string, args ...any) bool {
	want := math.Max(n-float64(s.Others), math.Min(n, n/2+1))
	limit := int(math.Ceil(want)) + 1
	if limit >= c.set.InFlight {
		return false
	}
	c.memory.InFlight.Started = true
	c.endTrial()
	return c.setInFlight(limit, reason, args...)
}

// explore tries something, when a measurement is complete and there is something to try.
func (c *Controller) explore(s *Sample) {
	switch {
	case c.memory.InFlight.Trial.From > 0:
		c.exploreInFlight(s)
	case c.memory.Chunk.Trial.From == 0 && c.epoch.idle(s) && c.exploreInFlight(s):
	case c.memory.Chunk.Trial.From > 0 || c.turn == turnChunk && !c.slow():
		if c.exploreChunk(s) || c.memory.Chunk.Trial.From > 0 {
			c.turn = turnInFlight
			return
		}
		c.exploreInFlight(s)
	default:
		if c.exploreInFlight(s) {
			c.turn = turnChunk
			return
		}
		c.exploreChunk(s)
	}
}

// turn is what is to be tried next, if there is something to try of it.
type turn int

const (
	turnChunk turn = iota
	turnInFlight
)

// slow reports whether requests take so long that fewer at once come before anything else: each trial takes long.
func (c *Controller) slow() bool { return c.epoch.sum.service() >= c.cfg.MaxWait }

// exploreInFlight judges the step that is being tried, or tries one. It reports whether something was done.
func (c *Controller) exploreInFlight(s *Sample) bool {
	e := &c.epoch
	if !e.complete || !s.InFlightAuto {
		return false
	}
	if c.memory.InFlight.Trial.From > 0 {
		c.judgeInFlight(e, s)
		return true
	}
	return c.tryInFlight(e, s)
}

// judgeInFlight keeps a step, and goes on in its direction, or takes it back.
func (c *Controller) judgeInFlight(e *epoch, s *Sample) {
	m := &c.memory.InFlight
	tried, here := m.Trial, c.set.InFlight
	got, took := e.sum.perSecond(e.sum.done), c.now.Sub(e.from)
	m.Trial = trial{}
	m.Service = tried.Service
	if e.sum.timedOut > 0 { // it was not the step
		c.setInFlight(tried.From, "%d requests ran out of time while %d at once were tried", e.sum.timedOut, here)
		return
	}
	wanted := tried.Base * harmless
	below := !tried.Up && here < s.Places && s.filled() > 0
	if below {
		wanted = tried.Base * (1 + betterBy) // places that services have stay idle for it
	}
	if tried.Up {
		wanted = tried.Base * (1 + worthwhile*(float64(here)/float64(tried.From)-1))
	}
	if got >= wanted && m.follows(tried, here, e) {
		m.Service = e.sum.service().Seconds()
		if tried.Up {
			m.Up.clear()
			m.Stride = min(2, m.strideUp()*1.25)
		} else {
			m.Down.clear()
			m.Plunge = got >= tried.Base*muchBetter
			m.Fewer = here < s.Places
		}
		if c.now.After(m.CutAt.Add(time.Minute)) {
			c.forgetSizes(tried.From)
		}
		if !c.step(tried.Up, e, s) {
			c.begin()
		}
		return
	}
	if tried.Up {
		m.Up.fail(c.now, took, longHold)
		m.Stride = 0
	} else {
		m.Down.fail(c.now, took, longHold)
		if below {
			m.Down.fail(c.now, longHold, longHold)
		}
		m.Plunge = false
	}
	c.setInFlight(tried.From, "%s items/s with %d, %s with %d", number(got), here, number(tried.Base), tried.From)
}

// follows reports whether the time of a request moved as it must have when the step paid. It is a surer sign than the
// throughput, of which a measurement of few requests says little.
func (m *inFlightMemory) follows(tried trial, here int, e *epoch) bool {
	if tried.Service == 0 {
		return true
	}
	ratio := float64(here) / float64(tried.From)
	got := e.sum.service().Seconds() / tried.Service
	if tried.Up {
		return got <= ratio/(1+worthwhile*(ratio-1))
	}
	return got <= (1+ratio)/2
}

// idle reports whether services have places for more than they work on.
func (e *epoch) idle(s *Sample) bool {
	return s.filled() > 0 && e.complete && e.sum.busy() < atWork*float64(s.Places)
}

// tryInFlight begins a step up when services are all at work, or down when more at once may be what slows them.
// It reports whether it did.
func (c *Controller) tryInFlight(e *epoch, s *Sample) bool {
	m := &c.memory.InFlight
	service := e.sum.service().Seconds()
	if m.Service > 0 && math.Abs(service-m.Service) > changedBy*m.Service {
		m.Up.clear()
		m.Down.clear()
		m.Service = service
	}
	tried := false
	first := !c.slow() || c.epoch.idle(s)
	// When requests take long, whether fewer are faster comes first, unless services have places idle.
	for _, up := range []bool{first, !first} {
		side := m.Down
		if up {
			side = m.Up
		}
		tried = tried || e.sum.timedOut == 0 && side.free(c.now) && c.step(up, e, s)
	}
	if !tried {
		c.again()
	}
	return tried
}

// again begins a measurement of the same settings.
func (c *Controller) again() {
	c.epoch = epoch{from: c.now, settled: true}
}

// step goes one step up or down, from a complete measurement.
func (c *Controller) step(up bool, e *epoch, s *Sample) bool {
	m := &c.memory.InFlight
	from := c.limit(s)
	base := e.sum.perSecond(e.sum.done)
	if up {
		to := max(from+1, int(math.Round(float64(from)*m.strideUp())))
		if s.Ceiling > 0 && from >= s.Ceiling || e.sum.wait() > c.cfg.MaxWait/dry ||
			from >= easy && !atWorkOn(e, from) ||
			!c.setInFlight(to, "services work on %s at once and more waits; %s items/s so far", number(e.sum.busy()),
				number(base)) {
			return false
		}
	} else {
		to := min(from-1, int(math.Round(float64(from)*m.strideDown())))
		early := to < s.Places && s.filled() > 0 && c.now.Sub(c.began) < fewerAfter
		if to < 1 || early || !atWorkOn(e, from) ||
			!c.setInFlight(to, "a request takes %s; whether fewer at once are faster: %s items/s so far",
				seconds(e.sum.service()), number(base)) {
			return false
		}
	}
	m.Trial = trial{From: from, Up: up, Base: base, Service: e.sum.service().Seconds()}
	return true
}

// atWorkOn reports whether services work on nearly all of the n requests that may be under way, so that their number
// is what the services feel.
func atWorkOn(e *epoch, n int) bool { return e.sum.busy() >= atWork*float64(n) }

// strideDown is by what a step down multiplies.
func (m *inFlightMemory) strideDown() float64 {
	if m.Plunge {
		return 0.5
	}
	return 0.7
}

func (m *inFlightMemory) strideUp() float64 { return max(1.25, m.Stride) }
