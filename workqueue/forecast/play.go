package forecast

import (
	"cmp"
	"math"
	"slices"
)

type limit int

const (
	byInFlight limit = iota
	byBudget
	byShare
	byAuto
	byWorkers
	byRate
	byEndpointRate
)

// play is one simulation of the remaining work of all runs.
type play struct {
	*index
	now   float64
	steps []stepPlay
	runs  []runPlay

	shares  []share // reused for an endpoint's shares
	changed []bool  // endpoints to be shared again
}

type runPlay struct {
	ended float64
	waits float64 // when it started to wait for a person; -1: never
	free  bool    // all items may go: no canary, or it ended
}

func (r *runPlay) wait(now float64) {
	if r.waits < 0 {
		r.waits = now
	}
}

type stepPlay struct {
	slot      float64 // seconds of a place that an item costs, including retries
	started   float64 // items requested at least once
	arrived   float64 // items available
	later     float64 // items available at laterAt: scheduled retries
	laterAt   float64
	total     float64
	marks     []mark  // what ends last
	ended     float64 // -1: not ended
	rate      float64 // items a second being requested
	inflow    float64 // items a second arriving
	places    float64 // requests in flight
	limit     limit
	backlog   float64 // seconds during which items waited for it
	idle      float64 // share of its places initially unused for want of items
	waitedFor bool    // its gate has been reached
	moved     float64 // items requested lately
	was       float64 // rate of the last pass
	stuck     bool    // it cannot progress
	began     float64 // time of the first request; -1: none
	used      float64 // seconds of places used
}

// mark is an item whose outcome comes that long after its request.
type mark struct{ item, delay float64 }

// exact is the most changes simulated individually; see [play.least].
const exact = 200

// play simulates until all ends; without luck, the nominal course.
func (n *Network) play(x *index, lucks []luck, without []bool) *play {
	p := n.start(x, lucks, without)
	n.expect(p)
	one := min(8*len(n.Steps)+32, exact)
	for event := range one + 32*40 {
		if lucks == nil {
			p.note()
		}
		n.release(p)
		n.allot(p)
		if p.now == 0 {
			n.noteIdle(p)
		}
		d := n.next(p)
		if math.IsInf(d, 1) {
			if n.unstick(p) {
				continue
			}
			break
		}
		n.advance(p, max(d, p.least(event-one)))
	}
	for i := range n.Steps {
		s := &p.steps[i]
		if s.ended < 0 { // it cannot progress
			s.ended, s.stuck = p.now, true
		}
		r := &p.runs[n.Steps[i].Run]
		r.ended = max(r.ended, s.ended)
	}
	return p
}

// least is the shortest step of time after many changes, ever longer, so that the simulation ends.
func (p *play) least(past int) float64 {
	if past < 0 {
		return 0
	}
	return max(p.now, 1e-3) * 2e-3 * math.Exp2(float64(past/32))
}

// expect adds what steps will get from requests in flight at needed steps.
func (n *Network) expect(p *play) {
	for i := range n.Steps {
		if sp := &p.steps[i]; sp.ended < 0 {
			out := n.fed(p, i, func(need int) float64 { return n.Steps[need].Out })
			sp.arrived = min(sp.arrived+out, sp.most())
		}
	}
}

// unstick ends the canaries of runs that cannot progress: their missing items will not come.
func (n *Network) unstick(p *play) (some bool) {
	for r := range p.runs {
		if run := &p.runs[r]; !run.free {
			if run.free, some = true, true; n.Runs[r].Approve {
				run.wait(p.now)
			}
		}
	}
	return some
}

// fed is how much a step gets of something from needed steps that have not ended, in its own items.
func (n *Network) fed(p *play, i int, of func(need int) float64) float64 {
	s := &n.Steps[i]
	if s.Barrier {
		return 0
	}
	least := math.Inf(1)
	for _, need := range s.Needs {
		if from := &p.steps[need]; from.ended < 0 || from.ended > p.now {
			least = min(least, of(need)*s.Items/max(from.total, 1))
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// leave removes a step from a simulation.
func (s *stepPlay) leave() { s.started, s.arrived, s.later, s.ended = s.total, s.total, 0, 0 }

// most is the number of items that can be available now.
func (s *stepPlay) most() float64 { return s.total - s.later }

// release releases items that waited for steps, a canary or a person, who is assumed to act immediately.
func (n *Network) release(p *play) {
	for r := range p.runs {
		if run := &p.runs[r]; !run.free && n.sampled(p, r) {
			run.free = true
			if n.Runs[r].Approve {
				run.wait(p.now)
			}
		}
	}
	for i := range n.Steps {
		s, sp := &n.Steps[i], &p.steps[i]
		if sp.later > 0 && p.now >= sp.laterAt {
			sp.arrived, sp.later = sp.arrived+sp.later, 0
		}
		if sp.ended >= 0 || sp.arrived >= sp.most() || !p.runs[s.Run].free || !p.over(s.Needs) {
			continue
		}
		if sp.arrived = sp.most(); s.Gate && !sp.waitedFor {
			sp.waitedFor = true
			p.runs[s.Run].wait(p.now)
		}
	}
}

func (p *play) over(steps []int) bool {
	return !slices.ContainsFunc(steps, func(i int) bool { return p.steps[i].ended < 0 || p.steps[i].ended > p.now })
}

// sampled reports whether a canary's sample, as large as the first steps say, was requested, except at barriers.
func (n *Network) sampled(p *play, r int) bool {
	held := 0.0
	for _, i := range p.byRun[r] {
		held = max(held, n.Steps[i].Held/max(n.Steps[i].Items, 1))
	}
	for _, i := range p.byRun[r] {
		sp := &p.steps[i]
		if sp.ended < 0 && !n.Steps[i].Barrier && sp.started < sp.total*(1-held)-1e-3 {
			return false
		}
	}
	return true
}

const (
	// settles is the number of passes for rates to converge where steps that feed each other share an endpoint.
	settles = 8
	// Large networks change often and little, so a few passes from the previous rates suffice.
	manySteps, fewPasses = 100, 4
)

// allot divides the endpoints' places among steps with work, which gives their rates. What arrives at a step depends
// on other rates: each pass gets one step further down the chains. After that, changes are applied by half.
func (n *Network) allot(p *play) {
	rate := func(need int) float64 { return p.steps[need].rate }
	changed := p.changed
	passes, straight := p.depth+settles, p.depth
	if len(n.Steps) > manySteps && p.now > 0 {
		passes, straight = fewPasses, fewPasses/2
	}
	for pass := range passes {
		for e := range changed {
			changed[e] = pass == 0
		}
		for i := range n.Steps {
			sp := &p.steps[i]
			inflow := 0.0
			if sp.ended < 0 && sp.arrived < sp.most() {
				inflow = n.fed(p, i, rate)
			}
			if pass > straight {
				inflow = (inflow + sp.inflow) / 2
			}
			if inflow != sp.inflow {
				changed[n.Steps[i].Endpoint] = true
			}
			sp.inflow, sp.was = inflow, sp.rate
		}
		for e := range n.Endpoints {
			if changed[e] {
				n.allotEndpoint(p, e)
			}
		}
		if p.settled() {
			return
		}
	}
}

func (p *play) settled() bool {
	for i := range p.steps {
		if sp := &p.steps[i]; math.Abs(sp.rate-sp.was) > 1e-4*max(sp.rate, sp.was) {
			return false
		}
	}
	return true
}

func (n *Network) allotEndpoint(p *play, e int) {
	at := &n.Endpoints[e]
	all := p.shares[:0]
	for _, auto := range []bool{true, false} {
		for _, i := range p.byEndpoint[e] {
			if s := &n.Steps[i]; auto == (s.Auto && at.Auto > 0) {
				if wants := n.wants(p, i); wants > 0 {
					run := &n.Runs[s.Run]
					all = append(all, share{step: i, priority: run.Priority, weight: max(float64(run.Share), 1), wants: wants})
				}
			}
		}
		if auto {
			if fill(all, float64(at.Auto)) {
				n.mark(p, all, byAuto)
			}
			for j := range all {
				all[j].wants = all[j].gets
			}
		}
	}
	p.shares = all
	pool, by := math.Inf(1), byBudget
	if at.Budget > 0 {
		pool = float64(at.Budget)
	}
	if at.Workers > 0 && at.Workers < pool {
		pool, by = at.Workers, byWorkers
	}
	if fill(all, pool) {
		n.mark(p, all, by)
	}
	for _, sh := range all {
		sp := &p.steps[sh.step]
		sp.places, sp.rate = sh.gets, sh.gets/sp.slot*at.speed(p.now)
	}
	if at.Rate > 0 {
		n.shareRate(p, all, at.Rate)
	}
}

// wants is how many places a step alone would fill now.
func (n *Network) wants(p *play, i int) float64 {
	s, sp := &n.Steps[i], &p.steps[i]
	speed := n.Endpoints[s.Endpoint].speed(p.now)
	if sp.rate, sp.places = 0, 0; sp.ended >= 0 || sp.started >= sp.total || speed == 0 {
		return 0
	}
	slot := sp.slot / speed
	places := float64(s.inFlight())
	sp.limit = byInFlight
	if most := s.most(&n.Endpoints[s.Endpoint]) * slot; most < places {
		if places, sp.limit = most, byEndpointRate; s.Rate > 0 && s.Rate*slot <= most {
			sp.limit = byRate
		}
	}
	if sp.arrived-sp.started < 1e-6 {
		return min(places, sp.inflow*slot)
	}
	return places
}

// inFlight is how many requests the step may have in flight.
func (s *Step) inFlight() int {
	if s.Cap > 0 {
		return min(s.Cap, s.InFlight)
	}
	return s.InFlight
}

// most is the items a second that the rates permit a step.
func (s *Step) most(at *Endpoint) float64 {
	most := math.Inf(1)
	if s.Rate > 0 {
		most = s.Rate
	}
	if at.RequestRate > 0 {
		most = min(most, at.RequestRate*max(s.Cost.Chunk, 1))
	}
	return most
}

func (n *Network) shareRate(p *play, all []share, rate float64) {
	for i := range all {
		all[i].wants = p.steps[all[i].step].rate
	}
	if fill(all, rate) {
		n.mark(p, all, byEndpointRate)
	}
	for _, sh := range all {
		sp := &p.steps[sh.step]
		sp.rate, sp.places = sh.gets, sh.gets*sp.slot/n.Endpoints[n.Steps[sh.step].Endpoint].speed(p.now)
	}
}

// share is what a step wants and gets of something shared.
type share struct {
	step, priority int
	weight         float64
	wants, gets    float64
}

// fill divides what exists: by priority, and by weight within one unless a step wants less. short: any got less.
func fill(all []share, left float64) (short bool) {
	slices.SortFunc(all, func(a, b share) int {
		switch {
		case a.priority != b.priority:
			return cmp.Compare(b.priority, a.priority)
		case a.wants*b.weight != b.wants*a.weight:
			return cmp.Compare(a.wants*b.weight, b.wants*a.weight)
		}
		return cmp.Compare(a.step, b.step)
	})
	for i := 0; i < len(all); {
		j, weight := i, 0.0
		for ; j < len(all) && all[j].priority == all[i].priority; j++ {
			weight += all[j].weight
		}
		for ; i < j; i++ {
			all[i].gets = min(all[i].wants, left*all[i].weight/weight)
			left, weight = left-all[i].gets, weight-all[i].weight
			short = short || all[i].gets < all[i].wants-1e-9
		}
	}
	return short
}

// mark records what limited the steps that got less than they wanted.
func (n *Network) mark(p *play, all []share, by limit) {
	several := slices.ContainsFunc(all, func(sh share) bool { return n.Steps[sh.step].Run != n.Steps[all[0].step].Run })
	for _, sh := range all {
		if sh.gets < sh.wants-1e-9 {
			if p.steps[sh.step].limit = by; several && by != byWorkers {
				p.steps[sh.step].limit = byShare
			}
		}
	}
}

// next is the time until something changes.
func (n *Network) next(p *play) float64 {
	d := n.nextSpeed(p.now)
	for i := range n.Steps {
		sp := &p.steps[i]
		if sp.later > 0 && sp.ended < 0 {
			d = min(d, max(sp.laterAt-p.now, 0))
		}
		switch left, waiting := sp.total-sp.started, sp.arrived-sp.started; {
		case sp.ended > p.now:
			d = min(d, sp.ended-p.now)
		case sp.ended >= 0:
		case left <= 1e-6:
			d = 0 // its end must be recorded
		case sp.rate <= 0:
		case waiting > 1e-6 && sp.rate > sp.inflow:
			d = min(d, waiting/(sp.rate-sp.inflow), left/sp.rate)
		default:
			d = min(d, left/sp.rate)
		}
	}
	if !(d >= 0) { // NaN
		return math.Inf(1)
	}
	return d
}

func (n *Network) advance(p *play, d float64) {
	moved := func(need int) float64 { return p.steps[need].moved }
	for i := range n.Steps {
		sp := &p.steps[i]
		if sp.moved = 0; sp.ended >= 0 {
			continue
		}
		waiting := sp.arrived - sp.started
		sp.arrived = min(max(sp.arrived+n.fed(p, i, moved), sp.started), sp.most())
		if sp.rate > 0 {
			if waiting > 1e-6 || n.Steps[i].most(&n.Endpoints[n.Steps[i].Endpoint]) <= sp.rate {
				sp.backlog += d
			}
			to := min(sp.started+sp.rate*d, sp.arrived)
			if sp.total-to < 1e-6 {
				to = sp.total
			}
			if sp.began < 0 {
				sp.began = p.now
			}
			sp.used += sp.places * (to - sp.started) / sp.rate
			sp.pass(sp.started, to, p.now, sp.rate)
			sp.started, sp.moved = to, to-sp.started
			sp.arrived = max(sp.arrived, to)
		}
		if sp.started >= sp.total {
			sp.ended = sp.end()
			for _, need := range n.Steps[i].Needs { // its last items came no earlier
				sp.ended = max(sp.ended, p.steps[need].ended+n.Steps[i].Cost.typical())
			}
			sp.ended = max(sp.ended, p.now)
		}
	}
	p.now += d
}

// noteIdle records how much of its places each step leaves unused because it is fed slowly.
func (n *Network) noteIdle(p *play) {
	for i := range n.Steps {
		s, sp := &n.Steps[i], &p.steps[i]
		if sp.ended < 0 && !s.Barrier && len(s.Needs) > 0 && sp.arrived-sp.started < 1e-6 && sp.arrived < sp.total {
			sp.idle = 1 - sp.places/float64(max(s.inFlight(), 1))
		}
	}
}
