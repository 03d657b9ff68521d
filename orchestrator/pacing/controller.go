package pacing

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Defaults of Config.
const (
	DefaultInFlight    = 16
	DefaultMaxInFlight = 1024
	// A queue longer than the first is cut to the second.
	DefaultMaxWait = time.Second
	DefaultChunk   = 500
	// What a request may take when nothing says otherwise; longer ones make chunks smaller.
	DefaultChunkTime = 5 * time.Second
	DefaultChunkMax  = 8192
)

// Config bounds what a controller may decide. A zero field means its default.
type Config struct {
	InFlight    int           // where an endpoint begins that nothing is known of
	MaxInFlight int           // never more
	MaxWait     time.Duration // that a request should spend in the queue at the most
	Chunk       int           // where chunks begin
}

func (c Config) withDefaults() Config {
	c.InFlight = cmp.Or(c.InFlight, DefaultInFlight)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, DefaultMaxInFlight)
	c.MaxWait = cmp.Or(c.MaxWait, DefaultMaxWait)
	c.Chunk = cmp.Or(c.Chunk, DefaultChunk)
	return c
}

func (c Config) validate() error {
	switch {
	case c.InFlight < 1 || c.InFlight > c.MaxInFlight:
		return fmt.Errorf("pacing: Config.InFlight is %d; it must be 1 to MaxInFlight, %d", c.InFlight, c.MaxInFlight)
	case c.MaxWait <= 0:
		return fmt.Errorf("pacing: Config.MaxWait is %s; it must be positive", c.MaxWait)
	case c.Chunk < 1 || c.Chunk > DefaultChunkMax:
		return fmt.Errorf("pacing: Config.Chunk is %d; it must be 1 to %d", c.Chunk, DefaultChunkMax)
	}
	return nil
}

// Settings are what a controller decides.
type Settings struct {
	InFlight int     // requests under way; 0: not decided yet
	Rate     float64 // items a second; 0: no limit
	Chunk    int     // items in a request; 0: not decided yet
}

// What a change is about.
const (
	WhatInFlight = "in_flight"
	WhatRate     = "rate"
	WhatChunk    = "chunk"
)

// Change is one decision. Before and After are for people; Reason says why, with the numbers.
type Change struct {
	What, Before, After, Reason string
}

// StaleAfter is after how long without a sample the measurements of before say nothing about now.
const StaleAfter = 10 * time.Second

// Controller decides for one endpoint.
type Controller struct {
	cfg     Config
	now     time.Time // of the sample at hand
	last    time.Time // of the sample before
	began   time.Time // of the first sample since a pause
	set     Settings
	recent  [recentSamples]tally // the latest samples, as a ring
	seen    int                  // samples since the beginning, or since a pause
	epoch   epoch
	start   beginning
	turn    turn
	tinies  tinies
	placed  int       // the size of requests when places were looked at
	shrunk  time.Time // when a size was left because requests ran out of time
	fresh   bool      // nothing is known, not even what services say
	memory  memory
	changes []Change
}

const (
	// recentSamples is how many samples are kept.
	recentSamples = 120
	// lookBack is how many of them rules look back that go by what is going on just now.
	lookBack = 10
)

// memory is what a controller knows beside its settings. It is kept for the next leader.
type memory struct {
	InFlight inFlightMemory `json:"in_flight"`
	Rate     rateMemory     `json:"rate"`
	Chunk    chunkMemory    `json:"chunk"`
}

// New returns a controller that goes on with what one before it had settled and learned. learned is what Learned
// returned then; when it is empty, or of another version, the controller begins anew with the settings.
func New(cfg Config, set Settings, learned []byte) (*Controller, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Controller{cfg: cfg, set: set}
	if json.Unmarshal(learned, &c.memory) != nil {
		c.memory = memory{} // what cannot be read is learned again
	}
	c.fresh = set.InFlight == 0 || set.InFlight == cfg.InFlight && c.memory == memory{}
	c.set.InFlight = min(max(1, cmp.Or(set.InFlight, cfg.InFlight)), cfg.MaxInFlight)
	if c.set.InFlight > cfg.InFlight {
		c.memory.InFlight.Started = true // somebody has found that before
	}
	c.set.Chunk = min(max(1, cmp.Or(set.Chunk, cfg.Chunk)), DefaultChunkMax)
	return c, nil
}

// Settings returns what is decided at present.
func (c *Controller) Settings() Settings { return c.set }

// Learned returns what the controller would have its successor know.
func (c *Controller) Learned() []byte {
	b, err := json.Marshal(&c.memory)
	if err != nil {
		return []byte("{}") // it has no value that could not be written
	}
	return b
}

// Adopt takes over settings that somebody else has changed.
func (c *Controller) Adopt(set Settings) {
	if set.InFlight > 0 && set.InFlight != c.set.InFlight || set.Chunk > 0 && set.Chunk != c.set.Chunk {
		c.epoch = epoch{}
	}
	c.set.InFlight = cmp.Or(set.InFlight, c.set.InFlight)
	c.set.Chunk = cmp.Or(set.Chunk, c.set.Chunk)
	c.set.Rate = set.Rate
}

// Step takes a sample and returns what is to change, if anything.
func (c *Controller) Step(s Sample) []Change {
	c.changes = nil
	if !s.Known {
		s.Queued, s.InHands = 0, s.Live+s.Others
	}
	c.now = s.At
	t := tallyOf(&s)
	if s.Paused {
		c.refuse(&t, &s)
	}
	if s.Paused || s.At.Sub(c.last) > StaleAfter {
		c.forget()
	}
	if c.began.IsZero() {
		c.began = s.At
	}
	c.last = s.At
	if s.Paused || s.Window <= 0 {
		return c.changes
	}
	c.recent[c.seen%recentSamples] = t
	c.seen++
	c.meet(&s)
	if !c.guess(&s) {
		c.decide(&t, &s)
	}
	return c.changes
}

// decide changes something, if there is reason to.
func (c *Controller) decide(t *tally, s *Sample) {
	small := c.tinies.tooSmall(c, t, s)
	c.measure(t, s)
	if s.InFlightAuto {
		c.pace(t, s)
	}
	switch {
	case s.InFlightAuto && c.fill(s):
	case small && t.failed == 0:
		c.again()
	case c.shrinkChunk(s), s.InFlightAuto && (c.backOff() || c.shorten(s) || c.regain(s)):
		// What follows of it is to be seen first.
	case c.grow(t, s):
	default:
		c.explore(s)
	}
}

// refuse learns from what was refused before nothing was sent any more. It may be why nothing is.
func (c *Controller) refuse(t *tally, s *Sample) {
	if s.InFlightAuto && c.set.Rate == 0 && t.refused > t.done {
		c.lowerRate(t)
	}
}

// forget drops measurements, which speak of another time, and takes back what was being tried. What is decided and
// learned stays.
func (c *Controller) forget() {
	const unfinished = "what was tried was not finished"
	inFlight, chunk := c.memory.InFlight.Trial, c.memory.Chunk.Trial
	c.seen, c.began = 0, time.Time{}
	if c.start.from > 0 {
		c.start, c.memory.InFlight.Started = beginning{}, true
	}
	c.endTrial()
	if inFlight.From > 0 {
		c.setInFlight(inFlight.From, unfinished)
	}
	if chunk.From > 0 {
		c.setChunk(chunk.From, unfinished)
	}
	c.epoch = epoch{}
}

// lately adds up the latest samples, n at the most.
func (c *Controller) lately(n int) tally {
	var t tally
	for i := 1; i <= min(n, c.seen, recentSamples); i++ {
		t.add(c.recent[(c.seen-i)%recentSamples])
	}
	return t
}

// setInFlight changes the limit of requests under way.
func (c *Controller) setInFlight(n int, reason string, args ...any) bool {
	n = min(max(1, n), c.cfg.MaxInFlight)
	if n == c.set.InFlight {
		return false
	}
	c.note(WhatInFlight, strconv.Itoa(c.set.InFlight), strconv.Itoa(n), reason, args)
	c.set.InFlight = n
	c.start = beginning{}
	c.begin()
	return true
}

// setChunk changes the size of requests.
func (c *Controller) setChunk(n int, reason string, args ...any) bool {
	if n == c.set.Chunk {
		return false
	}
	c.note(WhatChunk, strconv.Itoa(c.set.Chunk), strconv.Itoa(n), reason, args)
	c.set.Chunk = n
	c.start = beginning{}
	c.begin()
	return true
}

func (c *Controller) setRate(rate float64, reason string, args ...any) {
	c.note(WhatRate, rateText(c.set.Rate), rateText(rate), reason, args)
	c.set.Rate = rate
}

func (c *Controller) note(what, before, after, reason string, args []any) {
	c.changes = append(c.changes, Change{what, before, after, fmt.Sprintf(reason, args...)})
}

func rateText(rate float64) string {
	if rate == 0 {
		return "none"
	}
	return number(rate)
}

// number writes a number for people: three digits are enough.
func number(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

// seconds writes a duration for people.
func seconds(d time.Duration) string {
	if d < time.Second {
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
}
