package autotune

import "time"

const (
	// refusedShare is the share of items that must be refused for the rate to be lowered.
	refusedShare = 0.01
	// firstRaise is the pause before a raise. It shrinks to soonestRaise, and doubles up to latestRaise with refusals.
	firstRaise   = 4 * time.Second
	soonestRaise = time.Second
	latestRaise  = 30 * time.Second
	// raiseBy is the factor of a raise, farRaiseBy after manyRaises without a refusal, or of a first guess.
	raiseBy    = 1.05
	farRaiseBy = 1.2
	manyRaises = 8
	guessRaise = 2 * time.Second
	// enoughRaises without a refusal end the rate.
	enoughRaises = 16
	// reached is the share of the rate that must be used for the rate to limit the throughput.
	reached = 0.8
	// evenly limits a request to this share of a second's items: services that count over shorter periods refuse more.
	evenly = 0.1
	// lowerTo is the least remaining share of a lowered rate, roomBelow the largest.
	lowerTo   = 0.5
	roomBelow = 0.97
)

type rateMemory struct {
	Pause     time.Duration `json:"pause,omitempty"` // before the next raise
	LoweredAt time.Time     `json:"lowered_at,omitzero"`
	RaisedAt  time.Time     `json:"raised_at,omitzero"`
	Raises    int           `json:"raises,omitempty"` // since the last refusal
	RefusedAt time.Time     `json:"refused_at,omitzero"`
	Guess     bool          `json:"guess,omitempty"` // no refusal since the rate was first set
}

func (c *Controller) paceRate(t *tally, s *Sample) {
	m := &c.memory.Rate
	if t.refused > 0 && float64(t.refused) >= refusedShare*float64(t.refused+t.done) {
		switch {
		case c.active() <= 1:
			// The first window was partly idle, and then services got a burst of saved-up items.
			c.memory.Rate.RefusedAt = c.now
		case c.set.Rate > 0 && c.evenOut(s): // the size may be refused
			c.memory.Rate.LoweredAt = c.now
		default:
			c.lowerRate(t)
			c.evenOut(s)
		}
		return
	}
	if c.set.Rate == 0 || !s.Demand && t.perSecond(t.done) < reached*c.set.Rate {
		return
	}
	since := m.RefusedAt
	if m.RaisedAt.After(since) {
		since = m.RaisedAt
	}
	lately := c.lately(3)
	pause := m.Pause
	if c.now.Sub(since) < pause || lately.perSecond(lately.done) < reached*c.set.Rate {
		return
	}
	c.raiseRate(m)
}

func (c *Controller) lowerRate(t *tally) {
	m := &c.memory.Rate
	lately := c.lately(3)
	if c.set.Rate > 0 && c.now.Sub(m.LoweredAt) < max(2*time.Second, lately.timeInSystem()*3/2) {
		m.RefusedAt = c.now
		return // what was sent before the last cut is still being refused
	}
	good := c.goodput()
	var rate float64
	switch {
	case c.set.Rate > 0:
		rate = min(max(good, lowerTo*c.set.Rate), roomBelow*c.set.Rate)
		m.Guess = false
		m.Pause = min(max(firstRaise, 2*m.Pause), latestRaise)
	case good > 0:
		rate, m.Guess, m.Pause = good, true, guessRaise
	default:
		rate, m.Guess, m.Pause = lowerTo*t.perSecond(t.refused), true, guessRaise
	}
	m.LoweredAt, m.RefusedAt, m.Raises = c.now, c.now, 0
	c.setRate(max(rate, 1), "services refused %d of %d items in %s; the most they took was %s items/s", t.refused,
		t.refused+t.done, seconds(t.window), number(good))
}

// evenOut makes requests small enough to arrive evenly at the current rate. It reports whether they were larger.
func (c *Controller) evenOut(s *Sample) bool {
	if !s.ChunkAuto || c.set.Rate == 0 || c.size(s) <= c.evenSize() {
		return false
	}
	c.endTrials()
	return c.setChunk(c.evenSize(), "services take %s items/s, and refuse less when they come evenly", number(c.set.Rate))
}

func (c *Controller) evenSize() int {
	if c.set.Rate == 0 {
		return maxChunk
	}
	return sizeBelow(int(c.set.Rate*evenly) + 1)
}

func (c *Controller) active() (n int) {
	for _, r := range c.recent[max(0, len(c.recent)-lookBack/2):] {
		if r.requests+r.failed > 0 {
			n++
		}
	}
	return n
}

// goodput returns the best throughput of the latest samples: at the moment services may refuse everything.
func (c *Controller) goodput() (good float64) {
	for _, r := range c.recent[max(0, len(c.recent)-lookBack/2):] {
		good = max(good, r.perSecond(r.done))
	}
	return good
}

func (c *Controller) raiseRate(m *rateMemory) {
	if m.Raises >= enoughRaises {
		c.setRate(0, "nothing was refused in %d raises", m.Raises)
		*m = rateMemory{}
		return
	}
	by := raiseBy
	if m.Guess || m.Raises >= manyRaises {
		by = farRaiseBy
	}
	clean := c.now.Sub(m.RefusedAt)
	m.Raises++
	m.RaisedAt = c.now
	if !m.Guess {
		m.Pause = max(m.Pause*7/10, soonestRaise)
	}
	c.setRate(c.set.Rate*by, "nothing was refused for %s", seconds(clean))
}
