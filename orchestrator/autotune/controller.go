// Package autotune decides the pace of an endpoint: requests in flight, items per second, and items per request. It
// learns from the outcome of earlier requests.
//
// A [Controller] is for one endpoint. About once a second it gets a [Sample] and returns [Change]s, each with its
// reason in plain words.
//
//   - In flight and chunk are searched: the next larger or smaller value is tried and kept if it pays. One is tried
//     at a time, so that effects have one cause.
//   - Rules precede the search. A long queue is shortened, timeouts cut the limit, idle capacity of services is
//     filled, a size that fails or takes too long is left, and refusals set a rate.
//
// A Controller has no clock and no I/O: samples have the time. It knows no limits set by operators, and is not safe
// for concurrent use.
package autotune

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

const (
	// defaultInFlight is the limit of an unknown endpoint, maxInFlight the highest limit.
	defaultInFlight = 16
	maxInFlight     = 1024
	maxChunk        = 8192
	// defaultChunkTime is the wanted time of a request by default; slower ones make chunks smaller.
	defaultChunkTime = 5 * time.Second
	// StaleAfter is the time without a sample after which earlier measurements no longer count.
	StaleAfter = 10 * time.Second
	// recentSamples is the number of samples kept, lookBack how many of them the rules use.
	recentSamples = 120
	lookBack      = 10
)

// Settings are what a controller decides.
type Settings struct {
	InFlight int     // 0: undecided
	Rate     float64 // items per second; 0: no limit
	Chunk    int     // items per request; 0: undecided
}

// Subjects of a change.
const (
	WhatInFlight = "in_flight"
	WhatRate     = "rate"
	WhatChunk    = "chunk"
)

// Change is one decision. Before, After and Reason are human-readable.
type Change struct {
	What, Before, After, Reason string
}

// Controller decides for one endpoint.
type Controller struct {
	now       time.Time // of the current sample
	last      time.Time // of the previous one
	began     time.Time // of the first sample since a pause
	set       Settings
	recent    []tally // newest last
	measure   measurement
	chunkNext bool // try the chunk next, if possible
	fresh     bool // nothing is known of the endpoint yet
	memory    memory
	changes   []Change
}

// memory is what a controller has learned. It is saved for the next leader and the next run.
type memory struct {
	InFlight inFlightMemory `json:"in_flight"`
	Rate     rateMemory     `json:"rate"`
	Chunk    chunkMemory    `json:"chunk"`
}

// New returns a controller that continues with an earlier one's settings and Learned, or learns again.
func New(set Settings, learned []byte) *Controller {
	c := &Controller{set: set, chunkNext: true}
	if json.Unmarshal(learned, &c.memory) != nil {
		c.memory = memory{}
	}
	c.fresh = cmp.Or(set.InFlight, defaultInFlight) == defaultInFlight && c.memory == memory{}
	c.set.InFlight = min(max(1, cmp.Or(set.InFlight, defaultInFlight)), maxInFlight)
	c.set.Chunk = min(max(1, cmp.Or(set.Chunk, workqueue.DefaultAutoChunk)), maxChunk)
	if m := &c.memory.InFlight; m.Stride < nearStride {
		m.Stride = nearStride
		if c.set.InFlight <= defaultInFlight { // nothing better was found
			m.Stride = farStride
		}
	}
	return c
}

// Settings returns the current settings.
func (c *Controller) Settings() Settings { return c.set }

// Learned returns the state for a successor.
func (c *Controller) Learned() []byte {
	b, err := json.Marshal(&c.memory)
	if err != nil {
		return []byte("{}") // never: every value can be marshaled
	}
	return b
}

// Adopt takes over settings changed by another node.
func (c *Controller) Adopt(set Settings) {
	if set.InFlight > 0 && set.InFlight != c.set.InFlight || set.Chunk > 0 && set.Chunk != c.set.Chunk {
		c.measure = measurement{}
	}
	c.set.InFlight = cmp.Or(set.InFlight, c.set.InFlight)
	c.set.Chunk = cmp.Or(set.Chunk, c.set.Chunk)
	c.set.Rate = set.Rate
}

// Step takes a sample and returns the changes.
func (c *Controller) Step(s Sample) []Change {
	c.changes = nil
	if !s.Known {
		s.Queued, s.InHands = 0, s.Live+s.Others
	}
	t := tallyOf(&s)
	c.now = s.At
	if s.Paused && s.InFlightAuto && c.set.Rate == 0 && t.refused > t.done {
		c.lowerRate(&t) // the refusals may be why nothing is sent
	}
	if s.Paused || s.At.Sub(c.last) > StaleAfter {
		// What is outdated and what was being tried; what was decided and learned stays.
		c.recent, c.began = nil, time.Time{}
		c.abandon()
		c.measure = measurement{}
	}
	if c.began.IsZero() {
		c.began = s.At
	}
	c.last = s.At
	if s.Paused || s.Window <= 0 {
		return c.changes
	}
	c.recent = append(c.recent[max(0, len(c.recent)-recentSamples+1):], t)
	c.measureSample(&t, &s)
	if s.InFlightAuto {
		c.paceRate(&t, &s)
	}
	c.decide(&s)
	return c.changes
}

func (c *Controller) decide(s *Sample) {
	switch {
	case s.InFlightAuto && c.fillPlaces(s):
	case s.ChunkAuto && (c.leaveSize(s) || c.keepTime(s)):
	case s.InFlightAuto && (c.backOff() || c.shortenQueue(s)):
	default:
		c.explore(s)
	}
}

func (c *Controller) lately(n int) tally {
	var t tally
	for _, r := range c.recent[max(0, len(c.recent)-n):] {
		t.add(r)
	}
	return t
}

func (c *Controller) setInFlight(n int, reason string, args ...any) bool {
	n = min(max(1, n), maxInFlight)
	if n == c.set.InFlight {
		return false
	}
	c.note(WhatInFlight, strconv.Itoa(c.set.InFlight), strconv.Itoa(n), reason, args)
	c.set.InFlight, c.fresh = n, false
	c.beginMeasurement()
	return true
}

func (c *Controller) setChunk(n int, reason string, args ...any) bool {
	if n == c.set.Chunk {
		return false
	}
	c.note(WhatChunk, strconv.Itoa(c.set.Chunk), strconv.Itoa(n), reason, args)
	c.set.Chunk = n
	c.beginMeasurement()
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

func seconds(d time.Duration) string {
	if d < time.Second {
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
}
