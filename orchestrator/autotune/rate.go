package autotune

import "time"

const (
	// refusedShare is the share of items that must be refused for the rate to be lowered.
	refusedShare = 0.01
	// firstRaise is how long after a refusal the rate is raised for the first time; raises come sooner while nothing is
	// refused, and later when that went wrong.
	firstRaise   = 4 * time.Second
	soonestRaise = time.Second
	latestRaise  = 30 * time.Second
	// raiseBy is by what the rate is raised, farRaiseBy when it has been raised many times without a refusal, or was a
	// first guess.
	raiseBy    = 1.05
	farRaiseBy = 1.2
	manyRaises = 8
	// Between raises of a first guess.
	guessRaise = 2 * time.Second
	// enoughRaises is after how many raises in a row without a refusal there is no need for a rate.
	enoughRaises = 16
	// reached is the share of the rate that must be made use of for it to be what bounds the throughput.
	reached = 0.8
	// evenly is the part of a second whose worth of items a request may hold while there is a rate: services that count
	// over less than a second refuse more of large ones.
	evenly = 0.1
	// lowerTo bounds what is left of a rate, and roomBelow what is left of one that was almost right.
	lowerTo   = 0.5
	roomBelow = 0.97
)

// rateMemory is what is known about the rate.
type rateMemory struct {
	Pause     time.Duration `json:"pause,omitempty"` // before the next raise
	LoweredAt time.Time     `json:"lowered_at,omitzero"`
	RaisedAt  time.Time     `json:"raised_at,omitzero"`
	Raises    int           `json:"raises,omitempty"` // since the last refusal
	RefusedAt time.Time     `json:"refused_at,omitzero"`
	Guess     bool          `json:"guess,omitempty"` // nothing has been refused since the rate was set first
}

// paceRate learns from refusals what services can do.
func (c *Controller) paceRate(t *tally, s *Sample) {
	m := &c.memory.Rate
	if t.refused > 0 && float64(t.refused) >= refusedShare*float64(t.refused+t.done) {
		switch {
		case c.active() <= 1:
			// The first window was idle for some of its time, and what had been saved up before went out in it at once.
			c.memory.Rate.RefusedAt = c.now
		case c.set.Rate > 0 && c.evenOut(s): // it may be the size that is refused
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
		return // what was sent before the last time is still being refused
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

// evenOut makes requests so small that they come evenly at the rate in force. It reports whether they were larger.
func (c *Controller) evenOut(s *Sample) bool {
	if !s.ChunkAuto || c.set.Rate == 0 || c.size(s) <= c.evenSize() {
		return false
	}
	c.endTrials()
	return c.setChunk(c.evenSize(), "services take %s items/s, and refuse less when they come evenly", number(c.set.Rate))
}

// evenSize is the largest size with which requests come evenly, at the rate in force.
func (c *Controller) evenSize() int {
	if c.set.Rate == 0 {
		return maxChunk
	}
	return sizeBelow(int(c.set.Rate*evenly) + 1)
}

// active is in how many of the latest samples something was answered.
func (c *Controller) active() (n int) {
	for _, r := range c.recent[max(0, len(c.recent)-lookBack/2):] {
		if r.requests+r.failed > 0 {
			n++
		}
	}
	return n
}

// goodput is what services can do, as far as the latest samples tell: what they have managed a moment ago. They may be
// refusing everything just now.
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
