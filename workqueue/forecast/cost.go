package forecast

import (
	"cmp"
	"math"
	"slices"
)

// Request is a request of a step. Times are seconds from now, negative in the past.
type Request struct {
	Items    float64
	First    bool // its items were requested for the first time
	Live     bool
	Odd      bool // of an outage
	Began    float64
	Ended    float64
	Took     float64 // seconds that the service worked on it; negative: unknown
	Instance string  // that answered
}

// Cost is the cost of a step's requests.
type Cost struct {
	Requests  int       // ended
	Chunk     float64   // items in a request
	Slot      float64   // seconds in flight for an item, including retries
	Spread    float64   // uncertainty of Slot: standard deviation, as a share
	Vary      float64   // variation between requests: standard deviation, as a share
	Again     float64   // retried items, as a share
	Stays     []float64 // seconds in flight of requests, ascending
	Fixed     float64   // share of those that does not depend on the number of items
	Busy      float64   // share in which the service worked; 0: unknown
	Level     float64   // requests in flight while there were any; 0: unknown
	Present   float64   // share of the time in which there were any
	Oldest    float64   // age of the oldest request in flight
	Youngest  float64
	Instances int // that answered

	served bool // Slot is a worker's time at the service
}

const (
	leastRequests = 3    // required for a forecast
	drift         = 0.07 // spontaneous change of a rate, as a share
	borrowed      = 0.15 // difference from an earlier run's rate
	levelWindow   = 30.0 // most seconds over which requests in flight are counted
	batches       = 8    // in which the spread is measured
	changed       = 16   // requests that must show a change
	fixedUnknown  = 0.1  // share of a request's time that does not depend on its size, if not measured
)

// Known reports whether enough was measured.
func (c *Cost) Known() bool { return c.Requests >= leastRequests && c.Slot > 0 }

func (c *Cost) typical() float64 { return quantile(c.Stays, 0.5) }

// rest is the remaining time of a request in flight of that age, by quantile.
func (c *Cost) rest(age, q float64) float64 {
	at, _ := slices.BinarySearch(c.Stays, age)
	if longer := c.Stays[at:]; len(longer) > 0 {
		return quantile(longer, q) - age
	}
	return age * q
}

// Measure derives the cost from requests of this run, or of an earlier one; from odd ones only if others are too few.
func Measure(requests []Request, earlier bool) Cost {
	var c Cost
	var live, ended []Request
	requests = usual(requests)
	for _, r := range requests {
		if r.Live {
			if c.Oldest = max(c.Oldest, -r.Began); len(live) == 0 || -r.Began < c.Youngest {
				c.Youngest = -r.Began
			}
			live = append(live, r)
		} else {
			ended = append(ended, r)
		}
	}
	slices.SortFunc(ended, func(a, b Request) int { return cmp.Compare(a.Ended, b.Ended) })
	ended = sinceChange(ended)
	instances := map[string]bool{}
	items, firsts, again, took, timed := 0.0, 0.0, 0.0, 0.0, 0.0
	for _, r := range ended {
		if r.First {
			items, firsts = items+r.Items, firsts+1
		} else {
			again += r.Items
		}
		if r.Took >= 0 {
			took, timed = took+r.Took, timed+r.Ended-r.Began
		}
		if r.Instance != "" {
			instances[r.Instance] = true
		}
	}
	if items == 0 {
		return Cost{}
	}
	c.Requests, c.Instances, c.Chunk, c.Again = len(ended), len(instances), items/firsts, min(again/items, 9)
	var mean float64
	if c.Stays, mean = stays(slices.Concat(ended, live)); mean <= 0 {
		return Cost{}
	}
	c.Slot = mean * float64(len(ended)) / items
	for _, q := range c.Stays {
		c.Vary += (q/mean - 1) * (q/mean - 1) / float64(len(c.Stays))
	}
	c.Vary = math.Sqrt(c.Vary)
	if timed > 0 {
		c.Busy = min(took/timed, 1)
	}
	c.Fixed = fixedShare(ended, c.Busy)
	if c.Spread = spread(ended, c.Vary); earlier {
		c.Spread += borrowed
	} else {
		c.Level = Level(requests)
		_, c.Present = level(requests, levelWindow)
	}
	return c
}

// usual drops odd requests, if enough others have ended.
func usual(requests []Request) []Request {
	kept := slices.DeleteFunc(slices.Clone(requests), func(r Request) bool { return r.Odd })
	ended, first := 0, false
	for _, r := range kept {
		if !r.Live {
			ended, first = ended+1, first || r.First
		}
	}
	if first && ended >= leastRequests {
		return kept
	}
	return requests
}

// sinceChange drops requests from before their time for an item clearly changed, by half or more, at the same size.
func sinceChange(ended []Request) []Request {
	for keep := len(ended) / 2; keep >= changed; keep /= 2 {
		at := len(ended) - keep
		before, after := logs(ended[:at]), logs(ended[at:])
		by, alike := math.Abs(before.mean-after.mean), math.Abs(math.Log(before.items/after.items)) < 0.2
		if alike && by >= 0.35 && by >= 5*math.Hypot(before.chance, after.chance) {
			return sinceChange(ended[at:])
		}
	}
	return ended
}

// logs is the mean logarithm of the time for an item, its standard error, and the mean number of items.
func logs(requests []Request) (of struct{ mean, chance, items float64 }) {
	n, square := float64(len(requests)), 0.0
	for _, r := range requests {
		x := math.Log(max(r.Ended-r.Began, 1e-6) / max(r.Items, 1))
		of.mean, square, of.items = of.mean+x/n, square+x*x/n, of.items+max(r.Items, 1)/n
	}
	of.chance = math.Sqrt(max(square-of.mean*of.mean, 0) / n)
	return of
}

// points is the number of stored quantiles.
const points = 64

// stays returns the quantiles and mean of requests' time in flight. Unfinished ones count, too, with their time so
// far: otherwise slow ones would be missing in a young run (Kaplan and Meier).
func stays(requests []Request) (quantiles []float64, mean float64) {
	sorted := slices.Clone(requests)
	for i := range sorted {
		if sorted[i].Live {
			sorted[i].Ended = 0
		}
	}
	slices.SortFunc(sorted, func(a, b Request) int {
		return cmp.Compare(a.Ended-a.Began, b.Ended-b.Began)
	})
	left, before := 1.0, 0.0 // share of all requests that take longer than before
	for i, r := range sorted {
		stay := r.Ended - r.Began
		mean += left * (stay - before)
		before = stay
		if r.Live {
			continue
		}
		for at := len(quantiles); at <= points && float64(at)/points <= 1-left*(1-1/float64(len(sorted)-i)); at++ {
			quantiles = append(quantiles, stay)
		}
		left *= 1 - 1/float64(len(sorted)-i)
	}
	for len(quantiles) <= points {
		quantiles = append(quantiles, before)
	}
	return quantiles, mean
}

// spread is how much an item's cost may differ from the measured one: by chance, and by later change.
func spread(ended []Request, vary float64) float64 {
	var each []float64
	for at := range batches {
		stay, items := 0.0, 0.0
		for _, r := range ended[at*len(ended)/batches : (at+1)*len(ended)/batches] {
			stay += r.Ended - r.Began
			if r.First {
				items += r.Items
			}
		}
		if items > 0 && stay > 0 {
			each = append(each, math.Log(stay/items))
		}
	}
	few := 0.5 / math.Sqrt(float64(len(ended)))
	if len(each) < 2 {
		return drift + few
	}
	mean, square := 0.0, 0.0
	for _, x := range each {
		mean += x / float64(len(each))
	}
	for _, x := range each {
		square += (x - mean) * (x - mean)
	}
	chance := max(square/float64(len(each)-1)/float64(len(each)), vary*vary/float64(len(ended)))
	return min(math.Sqrt(chance+drift*drift)+few*few, 1)
}

// Level is the recent number of requests in flight, ignoring pauses. Recent means a few times their median duration.
// If many more are in flight now, something has just begun, and they count.
func Level(requests []Request) float64 {
	quantiles, _ := stays(requests)
	in, _ := level(requests, min(max(4*quantile(quantiles, 0.5), 2), levelWindow))
	return in
}

// level is the number of requests in flight in the last window seconds, ignoring pauses, and the share without pauses.
func level(requests []Request, window float64) (mean, present float64) {
	type edge struct{ at, by float64 }
	var edges []edge
	live := 0.0
	for _, r := range requests {
		from, to := max(r.Began, -window), r.Ended
		if r.Live {
			to, live = 0, live+1
		}
		if to > from {
			edges = append(edges, edge{from, 1}, edge{to, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(b.by, a.by)) })
	in, busy, sum := 0.0, 0.0, 0.0
	for i, e := range edges {
		if i > 0 && in > 0 {
			busy += e.at - edges[i-1].at
			sum += in * (e.at - edges[i-1].at)
		}
		in += e.by
	}
	if busy == 0 {
		return 0, 0
	}
	return max(sum/busy, 0.9*live), min(busy/-edges[0].at, 1)
}

// fixedShare is the share of a request's time that does not depend on its size: from a line through requests of
// different sizes, or else the time in which the service does not work.
func fixedShare(ended []Request, busy float64) float64 {
	n, sx, sy, sxx, sxy := 0.0, 0.0, 0.0, 0.0, 0.0
	for _, r := range ended {
		y := r.Ended - r.Began
		n, sx, sy, sxx, sxy = n+1, sx+r.Items, sy+y, sxx+r.Items*r.Items, sxy+r.Items*y
	}
	if variance := sxx/n - sx*sx/n/n; variance > 0.04*sx*sx/n/n && sy > 0 {
		slope := (sxy/n - sx*sy/n/n) / variance
		return min(max(1-slope*sx/sy, 0), 1)
	}
	if busy > 0 {
		return 1 - busy
	}
	return fixedUnknown
}

// marks are the items that may finish last: how many items before the end such a one is on average, and its
// duration. They come from slow requests, and from items retried repeatedly.
func (s *Step) marks() []mark {
	c, typical := &s.Cost, s.Cost.typical()
	all := []mark{{0, typical}}
	slower := 0.0
	for _, rare := range []float64{0.005, 0.02, 0.05, 0.1, 0.2, 0.5} {
		if rare*float64(c.Requests) >= 0.5 {
			all = append(all, mark{c.Chunk / (rare - slower), quantile(c.Stays, 1-(rare+slower)/2)})
			slower = rare
		}
	}
	share, every, delay, wait := c.Again/(1+c.Again), 1.0, typical, s.Backoff
	for range min(s.Attempts-1, drawn-len(all)) {
		if every *= share; every < 1e-9 {
			break
		}
		delay, wait = delay+wait+typical, min(2*wait, max(s.MaxBackoff, s.Backoff))
		all = append(all, mark{1 / every, delay})
	}
	return all
}

// Fit adjusts the network to what was measured: a service with waiting requests has no more workers than it was seen
// to use, and idle places between requests are part of a request's cost. Call it once.
func (n *Network) Fit() {
	for e := range n.Endpoints {
		n.fitWorkers(e)
	}
	x, idle := n.index(), n.idle()
	slots := n.fit(x, idle)
	if slices.Contains(idle, true) {
		for i, slot := range n.fit(x, nil) {
			if idle[n.Steps[i].Run] {
				slots[i] = slot
			}
		}
	}
	for i, slot := range slots {
		n.Steps[i].Cost.Slot = slot
	}
}

// fit returns the cost of each step's items, including idle places. Some runs are left out.
func (n *Network) fit(x *index, without []bool) []float64 {
	p := n.start(x, nil, without)
	n.allot(p)
	taken, slots := make([]float64, len(n.Endpoints)), make([]float64, len(n.Steps))
	for i := range n.Steps {
		taken[n.Steps[i].Endpoint] += p.steps[i].places
	}
	for i := range n.Steps {
		s, sp := &n.Steps[i], &p.steps[i]
		slots[i] = s.Cost.Slot
		waiting := sp.arrived+sp.later-sp.started-s.Retrying >= 2*s.Cost.Chunk
		if s.Cost.Level == 0 || !waiting || sp.places <= 0 || sp.limit == byRate || sp.limit == byEndpointRate {
			continue
		}
		full := s.Cost.Level * s.Cost.used() / sp.places
		// Requests that have ended, or will shortly, used the same places.
		others := min(n.Endpoints[s.Endpoint].Level*s.Cost.used()/taken[s.Endpoint], 1)
		least := 0.1
		if s.Held > 0 && !n.Runs[s.Run].Canary { // few lanes fill few places, and none while the next items are found
			full, others, least = full*s.Cost.Present, 0, 0.001
		}
		slots[i] /= min(max(full, others, least), 1.25)
	}
	return slots
}

// used is the share of the time in flight that Slot counts.
func (c *Cost) used() float64 {
	if c.served {
		return c.Busy
	}
	return 1
}

const (
	queued    = 0.65 // a service that works less than this share has requests waiting
	queuedFor = 0.05 // for at least these seconds
)

func (n *Network) fitWorkers(e int) {
	level, busy := 0.0, 0.0
	for i := range n.Steps {
		if s := &n.Steps[i]; s.Endpoint == e && s.Cost.Level > 0 {
			wait := (1 - s.Cost.Busy) * s.Cost.typical()
			if s.Cost.Busy == 0 || s.Cost.Busy > queued || wait < queuedFor {
				return
			}
			level, busy = level+s.Cost.Level, busy+s.Cost.Level*s.Cost.Busy
		}
	}
	if level == 0 {
		return
	}
	n.Endpoints[e].Workers = max(busy, 0.1)
	for i := range n.Steps {
		if s := &n.Steps[i]; s.Endpoint == e && s.Cost.Busy > 0 {
			s.Cost.Slot, s.Cost.served = s.Cost.Slot*s.Cost.Busy, true
		}
	}
}
