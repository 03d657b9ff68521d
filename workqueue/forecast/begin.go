package forecast

import (
	"math"
	"math/rand/v2"
)

// luck is a step's random variations, each evenly between 0 and 1: of its marks, and the named ones; nil: the middle.
type luck []float64

const (
	drawn      = 12 // marks of a step at most
	luckOfCost = drawn
	luckOfLast = drawn + 1 // of the oldest request, and of the longest lane
)

func (l luck) even(of int) float64 {
	if l == nil {
		return 0.5
	}
	return l[of]
}

// normal is the standard normal quantile.
func normal(even float64) float64 { return math.Sqrt2 * math.Erfinv(2*even-1) }

// draw draws each round's variations. Each of a step's forms a Latin hypercube, so few rounds suffice.
func draw(steps, count int, seed uint64) [][]luck {
	source := rand.New(rand.NewPCG(seed, 0x7261))
	all := make([][]luck, count)
	for r := range all {
		all[r] = make([]luck, steps)
		for s := range steps {
			all[r][s] = make(luck, drawn+2)
		}
	}
	for at := range steps * (drawn + 2) {
		for r, even := range source.Perm(count) {
			all[r][at/(drawn+2)][at%(drawn+2)] = (float64(even) + 0.5) / float64(count)
		}
	}
	return all
}

type index struct {
	byEndpoint, byRun [][]int
	depth             int       // steps of the longest chain
	trace             *[]moment // of the nominal course; nil: not recorded
}

func (n *Network) index() *index {
	x := &index{byEndpoint: make([][]int, len(n.Endpoints)), byRun: make([][]int, len(n.Runs))}
	depth := make([]int, len(n.Steps))
	for i := range n.Steps {
		s := &n.Steps[i]
		x.byEndpoint[s.Endpoint] = append(x.byEndpoint[s.Endpoint], i)
		x.byRun[s.Run] = append(x.byRun[s.Run], i)
		for _, need := range s.Needs {
			depth[i] = max(depth[i], depth[need])
		}
		depth[i]++
		x.depth = max(x.depth, depth[i])
	}
	return x
}

// start returns the initial state. Runs left out count as ended.
func (n *Network) start(x *index, lucks []luck, without []bool) *play {
	p := &play{index: x, steps: make([]stepPlay, len(n.Steps)), runs: make([]runPlay, len(n.Runs)),
		changed: make([]bool, len(n.Endpoints))}
	for i := range n.Steps {
		var l luck
		if lucks != nil {
			l = lucks[i]
		}
		n.begin(p, i, l)
		if len(without) > 0 && without[n.Steps[i].Run] {
			p.steps[i].leave()
		}
	}
	for r := range n.Runs {
		p.runs[r] = runPlay{waits: -1, free: !n.Runs[r].Canary}
	}
	return p
}

func (n *Network) begin(p *play, i int, l luck) {
	s, out := &n.Steps[i], &p.steps[i]
	*out = stepPlay{slot: s.Cost.Slot, total: s.Items, ended: -1, began: -1}
	out.started = min(s.Settled+s.Out, s.Items)
	// The rest may cost more or less than measured, varying more the fewer requests it is.
	toCome := s.Cost.Vary * s.Cost.Vary * s.Cost.Chunk / max(s.Items-out.started, s.Cost.Chunk, 1)
	for _, need := range s.Needs { // what failed there is skipped here
		out.slot *= max(1-n.Steps[need].Failed, 0.01)
	}
	out.slot *= math.Exp(math.Sqrt(s.Cost.Spread*s.Cost.Spread+toCome) * normal(l.even(luckOfCost)))
	if s.RetryMean > 0 {
		out.later, out.laterAt = min(s.Retrying, s.Items-out.started), s.RetryMean
	}
	out.arrived = min(out.started+s.Ready+s.Retrying-out.later, out.most())
	if s.Items <= s.Settled || !s.Cost.Known() {
		out.leave()
		return
	}
	held := s.Held
	if !n.Runs[s.Run].Canary { // they are behind others in their lanes
		held, out.arrived = 0, min(out.arrived+s.Held, out.most())
		out.marks = append(out.marks, mark{s.Items, s.Cost.typical() * (1 + s.behind(l.even(luckOfLast)))})
	}
	if len(s.Needs) == 0 {
		out.arrived = max(out.most()-held, out.started)
	}
	for j, m := range s.marks() {
		if at := s.Items + math.Log(l.even(j))*m.item; at > s.Settled || m.item == 0 {
			out.marks = append(out.marks, mark{at, m.delay})
		}
	}
	out.ended = -1
	before := s.Cost.Level / max(s.Cost.Slot, 1e-9) // items a second until now
	to, at, all := out.started, -s.Out/max(before, 1e-9), out.started == s.Items
	if all { // they have been in flight for a while
		to, at = to+s.Cost.Youngest*before, at-s.Cost.Youngest
	}
	out.pass(math.Inf(-1), to, at, before)
	if s.Retrying > 0 {
		out.marks = append(out.marks, mark{-1, s.RetryDue + s.Cost.typical()})
	}
	if late := s.Cost.Oldest; s.Out > 0 && (all || late > quantile(s.Cost.Stays, 0.9)) {
		out.marks = append(out.marks, mark{-1, s.Cost.rest(late, l.even(luckOfLast))})
	}
}

// pass records when the items between two were requested: delays become times. A passed mark has item -1.
func (s *stepPlay) pass(from, to, at, rate float64) {
	for i := range s.marks {
		m := &s.marks[i]
		if m.item < 0 || m.item <= from && from > 0 || m.item > to {
			continue
		}
		began := at
		switch {
		case math.IsInf(from, -1):
			began = max(at, -(to-m.item)/max(rate, 1e-9))
		case rate > 0:
			began = at + (m.item-from)/rate
		}
		m.item, m.delay = -1, max(began+m.delay, 0)
	}
}

// end is the time of the last outcome, once all items are requested.
func (s *stepPlay) end() float64 {
	last := 0.0
	for _, m := range s.marks {
		last = max(last, m.delay)
	}
	return last
}

// behind is how many more items the longest lane has than others on average, by the quantile at which it is. Each lane
// has one item that is not held.
func (s *Step) behind(at float64) float64 {
	lanes, left := s.Ready+s.Out+s.Retrying, s.Items-s.Settled
	if lanes < 1 || s.Held == 0 {
		return 0
	}
	return min(max(normal(math.Pow(at, 1/lanes)), 0)*math.Sqrt(s.Items/lanes*(1+s.Cost.Vary*s.Cost.Vary)), left-left/lanes)
}
