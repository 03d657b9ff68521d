// Package autotune decides how fast an endpoint is asked: how many requests may be in flight, how many items a second
// are sent, and how many items a request holds. It learns that from what became of earlier requests.
//
// A [Controller] is for one endpoint. About once a second it is given a [Sample] of what was seen there and answers
// with [Change]s, each with its reason in plain words.
//
//   - In flight and chunk are searched: the next larger or smaller value is tried and kept when it pays. One thing is
//     tried at a time, so that what follows has one cause.
//   - Rules go before the search. A long queue is shortened, time-outs cut the limit, idle places of services are
//     filled, a size that fails or takes too long is left, and refusals set a rate.
//
// A Controller has no clock and no I/O: samples say when they were taken. It knows no limit that an operator sets, and
// is not safe for concurrent use.
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
	// An endpoint of which nothing is known begins with defaultInFlight; maxInFlight is the highest limit.
	defaultInFlight = 16
	maxInFlight     = 1024
	// maxChunk is the largest chunk.
	maxChunk = 8192
	// defaultChunkTime is what a request may take when no step says otherwise; longer ones make chunks smaller.
	defaultChunkTime = 5 * time.Second
	// StaleAfter is after how long without a sample earlier measurements no longer count.
	StaleAfter = 10 * time.Second
	// recentSamples is how many samples are kept, and lookBack how many of them rules about the present look at.
	recentSamples = 120
	lookBack      = 10
)

// Settings are what a controller decides.
type Settings struct {
	InFlight int     // requests in flight; 0: not decided yet
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

// Controller decides for one endpoint.
type Controller struct {
	now       time.Time // of the present sample
	last      time.Time // of the one before
	began     time.Time // of the first sample since a pause
	set       Settings
	recent    []tally // the latest samples, the newest last
	measure   measurement
	chunkNext bool // the chunk is to be tried next, if there is something to try
	fresh     bool // nothing is known of the endpoint, not even what its services say
	memory    memory
	changes   []Change
}

// memory is what a controller knows beside its settings. It is kept for the next leader and the next run.
type memory struct {
	InFlight inFlightMemory `json:"in_flight"`
	Rate     rateMemory     `json:"rate"`
	Chunk    chunkMemory    `json:"chunk"`
}

// New returns a controller that goes on with what an earlier one has settled and learned. When learned, which is what
// Learned returned then, is empty or cannot be read, the rest is learned again.
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
		if c.set.InFlight <= defaultInFlight { // no one has found more
			m.Stride = farStride
		}
	}
	return c
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

// Adopt takes over settings that someone else has changed.
func (c *Controller) Adopt(set Settings) {
	if set.InFlight > 0 && set.InFlight != c.set.InFlight || set.Chunk > 0 && set.Chunk != c.set.Chunk {
		c.measure = measurement{}
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
	t := tallyOf(&s)
	c.now = s.At
	if s.Paused && s.InFlightAuto && c.set.Rate == 0 && t.refused > t.done {
		c.lowerRate(&t) // these refusals may be why nothing is sent
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
	c.recent = append(c.recent[max(0, len(c.recent)-recentSamples+1):], t)
	c.measureSample(&t, &s)
	if s.InFlightAuto {
		c.paceRate(&t, &s)
	}
	c.decide(&s)
	return c.changes
}

// decide changes something, if there is reason to: the rules first, then the search.
func (c *Controller) decide(s *Sample) {
	switch {
	case s.InFlightAuto && c.fillPlaces(s):
	case s.ChunkAuto && (c.leaveSize(s) || c.keepTime(s)):
	case s.InFlightAuto && (c.backOff() || c.shortenQueue(s)):
	default:
		c.explore(s)
	}
}

// forget drops measurements, which say nothing about the present, and takes back what was being tried. What is decided
// and learned stays.
func (c *Controller) forget() {
	c.recent, c.began = nil, time.Time{}
	c.abandon()
	c.measure = measurement{}
}

// lately adds up the latest samples, n at most.
func (c *Controller) lately(n int) tally {
	var t tally
	for _, r := range c.recent[max(0, len(c.recent)-n):] {
		t.add(r)
	}
	return t
}

// setInFlight changes the limit of requests in flight.
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

// setChunk changes the size of requests.
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
