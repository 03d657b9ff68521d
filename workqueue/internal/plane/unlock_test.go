package plane

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

// An item's place at one step, one letter each.
const (
	waits   = '.'
	isReady = 'r'
	flies   = 'f'
	isDone  = 'd'
	hasFail = 'x'
	isLeft  = 's'
)

// drawn is a graph as the tests write it: needs in parentheses, optional steps with a question mark: "a b?(a) c(ab)".
// Steps are letters; each sees all that it needs.
func drawn(text string) *Graph {
	var steps []GraphStep
	for i := range len(text) {
		switch c := text[i]; c {
		case ' ', '(', ')':
		case '?':
			steps[len(steps)-1].Optional = true
		default:
			if i > 0 && text[i-1] != ' ' { // within parentheses
				s := &steps[len(steps)-1]
				s.Needs, s.inputs = append(s.Needs, workqueue.Step(c-'a')), append(s.inputs, workqueue.Step(c-'a'))
				continue
			}
			steps = append(steps, GraphStep{Name: string(c)})
		}
	}
	return NewGraph(steps)
}

func TestGraphReach(t *testing.T) {
	t.Parallel()
	g := drawn("a b(a) c(a) d(bc) e")
	for step, want := range [][]workqueue.Step{{1, 2, 3}, {3}, {3}, nil, nil} {
		if !slices.Equal(g.After[step], want) {
			t.Errorf("after step %d come %v; want %v", step, g.After[step], want)
		}
	}
	for step, want := range [][]workqueue.Step{nil, {0}, {0}, {0, 1, 2}, nil} {
		if !slices.Equal(g.Before[step], want) {
			t.Errorf("before step %d come %v; want %v", step, g.Before[step], want)
		}
	}
	if g.Single() || !drawn("a").Single() {
		t.Error("a graph of one step is single, and no other")
	}
}

// planesOf makes planes in which item 7 is at the places given, step by step.
func planesOf(places string) []Planes {
	at := make([]Planes, len(places))
	for i, place := range []byte(places) {
		switch place {
		case isReady:
			at[i].Ready.Add(7)
		case isDone:
			at[i].Done.Add(7)
		case hasFail:
			at[i].Failed.Add(7)
		case isLeft:
			at[i].Skipped.Add(7)
		}
	}
	return at
}

// places reads what planesOf writes. A bit in no plane was in flight, if it was, or waits.
func places(was string, now []Planes) string {
	text := []byte(was)
	for i := range now {
		switch p := &now[i]; {
		case p.Ready.Has(7):
			text[i] = isReady
		case p.Done.Has(7):
			text[i] = isDone
		case p.Failed.Has(7):
			text[i] = hasFail
		case p.Skipped.Has(7):
			text[i] = isLeft
		case text[i] != isReady && text[i] != flies:
			text[i] = waits
		}
	}
	return string(text)
}

func TestUnlock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, graph, at string
		step            workqueue.Step
		outcome         byte
		changed         bool
		want            string
		final           bool
	}{
		{"a need comes", "a b(a)", "f.", 0, isDone, false, "dr", false},
		{"the last step", "a b(a)", "df", 1, isDone, false, "dd", true},
		{"one of two needs comes", "a b c(ab)", "ff.", 0, isDone, false, "df.", false},
		{"the other comes", "a b c(ab)", "df.", 1, isDone, false, "ddr", false},
		{"a need fails", "a b(a) c(b)", "f..", 0, hasFail, false, "xss", true},
		{"a need fails beside one in progress", "a b c(ab)", "ff.", 0, hasFail, false, "xfs", false},
		{"what is left ends", "a b c(ab)", "xfs", 1, isDone, false, "xds", true},
		{"an optional need fails", "a? b(a)", "f.", 0, hasFail, false, "xr", false},
		{"an optional step is left out", "a b?(a) c(b)", "f..", 0, hasFail, false, "xsr", false},
		{"an optional need that waits", "a b?(a) c(ab)", "f..", 0, isDone, false, "dr.", false},
		{"unchanged again", "a b(a) c(b)", "fdd", 0, isDone, false, "ddd", true},
		{"changed again", "a b(a) c(b)", "fdd", 0, isDone, true, "drd", false},
		{"changed one further", "a b(a) c(b)", "dfd", 1, isDone, true, "ddr", false},
		{"unchanged one further", "a b(a) c(b)", "dfd", 1, isDone, false, "ddd", true},
		{"a kept failure, changed", "a b(a) c(b)", "fxs", 0, isDone, true, "dr.", false},
		{"a kept failure, unchanged", "a b(a) c(b)", "fxs", 0, isDone, false, "dxs", true},
		{"failed this time", "a b(a) c(b)", "fdd", 0, hasFail, true, "xss", true},
		{"failed this time, optional", "a? b(a)", "fd", 0, hasFail, true, "xr", false},
		{"failed as before, optional", "a? b(a)", "fd", 0, hasFail, false, "xd", true},
		{"an optional step lost its part", "a b?(a) c(b)", "fdd", 0, hasFail, true, "xsr", false},
		{"chain of left out", "a b(a) c(b) d(c)", "f...", 0, hasFail, false, "xsss", true},
		{"no need of it", "a b", "ff", 0, isDone, false, "df", false},
	} {
		g, news := drawn(c.graph), &Outcome{}
		if c.outcome == isDone {
			news.Done.Add(7)
		} else {
			news.Failed.Add(7)
		}
		changed := map[workqueue.Step]bitfield.Set{}
		if c.changed {
			changed[c.step] = bitfield.Of(7)
		}
		now, final := g.Unlock(planesOf(c.at), map[workqueue.Step]*Outcome{c.step: news}, changed)
		if got := places(c.at, now); got != c.want || final.Has(7) != c.final {
			t.Errorf("%s: %s of %s became %s, final %v; want %s, %v", c.name, c.at, c.graph, got, final.Has(7), c.want, c.final)
		}
	}
}

// entity is an item as anyone would write it: its place at each step, one by one, by the rules of the design.
type entity struct {
	g      *Graph
	places []byte
}

func (e *entity) is(s workqueue.Step, places ...byte) bool {
	return slices.Contains(places, e.places[s])
}

func (e *entity) settled(s workqueue.Step) bool {
	for _, n := range e.g.Steps[s].Needs {
		if !e.settled(n) {
			return false
		}
	}
	return e.is(s, isDone, hasFail, isLeft)
}

func (e *entity) open(s workqueue.Step) bool {
	for _, n := range e.g.Steps[s].Needs {
		if !e.settled(n) || !e.g.Steps[n].Optional && !e.is(n, isDone) {
			return false
		}
	}
	return true
}

func (e *entity) shut(s workqueue.Step) bool {
	for _, n := range e.g.Steps[s].Needs {
		if !e.g.Steps[n].Optional && e.is(n, hasFail, isLeft) {
			return true
		}
	}
	return false
}

func (e *entity) final() bool {
	for s := range e.places {
		if !e.is(workqueue.Step(s), isDone, hasFail, isLeft) {
			return false
		}
	}
	return true
}

// follow lets an outcome have its effect on the steps from one on.
func (e *entity) follow(from workqueue.Step, altered map[workqueue.Step]bool) {
	for s := from; int(s) < len(e.places); s++ {
		had := e.is(s, isDone)
		stale := slices.ContainsFunc(e.g.Steps[s].inputs, func(n workqueue.Step) bool { return altered[n] })
		if stale && e.is(s, isDone, hasFail) {
			e.places[s] = waits
		}
		switch {
		case e.shut(s):
			altered[s] = altered[s] || had
			e.places[s] = isLeft
		case e.is(s, isLeft):
			e.places[s] = waits
		}
		if e.open(s) && e.is(s, waits) {
			e.places[s] = isReady
		}
	}
}

// reset takes the item's outcome at a step back: it is ready there once what it needs is there. What depends on it is
// kept, or waits.
func (e *entity) reset(step workqueue.Step, cascade bool) {
	if e.places[step] = waits; e.open(step) {
		e.places[step] = isReady
	}
	for _, s := range e.g.After[step] {
		switch {
		case e.is(s, isReady, flies), cascade && e.is(s, isDone, hasFail), e.is(s, isLeft) && !e.shut(s):
			e.places[s] = waits
		}
	}
}

// drawGraph draws a graph of up to n steps.
func drawGraph(t *rapid.T, n int) *Graph {
	steps := make([]GraphStep, rapid.IntRange(2, n).Draw(t, "steps"))
	for i := range steps {
		steps[i].Name = fmt.Sprint(i)
		steps[i].Optional = rapid.IntRange(0, 3).Draw(t, "optional") == 0
		for need := range workqueue.Step(i) {
			if rapid.IntRange(0, 2).Draw(t, "needs") == 0 {
				steps[i].Needs = append(steps[i].Needs, need)
				if rapid.IntRange(0, 4).Draw(t, "sees") > 0 {
					steps[i].inputs = append(steps[i].inputs, need)
				}
			}
		}
	}
	return NewGraph(steps)
}

// TestUnlockAgainstAnOracle moves many items of a block together through settlements, and holds the planes against an
// oracle that goes item by item. Resets are the oracle's: after one the planes are made again.
func TestUnlockAgainstAnOracle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g, bits := drawGraph(t, 7), []int{0, 1, 63, 64, 500, bitfield.Size - 1}
		items := map[int]*entity{}
		for _, bit := range bits {
			e := &entity{g, make([]byte, len(g.Steps))}
			for s := range e.places {
				if e.places[s] = waits; len(g.Steps[s].Needs) == 0 {
					e.places[s] = isReady
				}
			}
			items[bit] = e
		}
		for range rapid.IntRange(1, 60).Draw(t, "moves") {
			if rapid.IntRange(0, 9).Draw(t, "reset") == 0 {
				step, cascade := workqueue.Step(rapid.IntRange(0, len(g.Steps)-1).Draw(t, "step")), rapid.Bool().Draw(t, "cascade")
				for _, bit := range bits {
					if items[bit].is(step, isDone, hasFail, flies) && rapid.Bool().Draw(t, "this") {
						items[bit].reset(step, cascade)
					}
				}
				continue
			}
			settleSome(t, g, bits, items)
		}
	})
}

// settleSome claims and records some bits, of several steps at once, both ways.
func settleSome(t *rapid.T, g *Graph, bits []int, items map[int]*entity) {
	at := make([]Planes, len(g.Steps))
	for _, bit := range bits {
		for s := range at {
			switch items[bit].places[s] {
			case isDone:
				at[s].Done.Add(bit)
			case hasFail:
				at[s].Failed.Add(bit)
			case isLeft:
				at[s].Skipped.Add(bit)
			}
		}
	}
	before := g.Eligibility(at)
	news, changed, final := map[workqueue.Step]*Outcome{}, map[workqueue.Step]bitfield.Set{}, bitfield.Set{}
	for _, bit := range bits {
		e := items[bit]
		wasFinal := e.final()
		ready := slices.DeleteFunc(slices.Clone(g.all()), func(s workqueue.Step) bool { return !e.is(s, isReady) })
		for _, s := range ready {
			if !before.Open[s].Has(bit) {
				t.Fatalf("item %d is ready at step %d, which is not open: %s", bit, s, e.places)
			}
			switch rapid.IntRange(0, 3).Draw(t, "outcome") {
			case 0:
				continue
			case 1:
				e.places[s] = hasFail
			default:
				e.places[s] = isDone
			}
			if news[s] == nil {
				news[s] = &Outcome{}
			}
			set := changed[s]
			if e.is(s, isDone) {
				news[s].Done.Add(bit)
			} else {
				news[s].Failed.Add(bit)
			}
			if rapid.Bool().Draw(t, "changed") {
				set.Add(bit)
			}
			changed[s] = set
		}
		altered := map[workqueue.Step]bool{}
		touched := false
		for s, set := range changed {
			altered[s] = set.Has(bit)
			all := news[s].All()
			touched = touched || all.Has(bit)
		}
		if touched {
			e.follow(0, altered)
		}
		if e.final() && !wasFinal {
			final.Add(bit)
		}
	}
	now, gotFinal := g.Unlock(at, news, changed)
	if gotFinal != final {
		t.Fatalf("final %v; want %v", gotFinal.Count(), final.Count())
	}
	compare(t, bits, items, before, now)
}

func compare(t *rapid.T, bits []int, items map[int]*entity, before Eligibility, now []Planes) {
	for _, bit := range bits {
		for s := range now {
			p, want := &now[s], items[bit].places[s]
			if p.Done.Has(bit) != (want == isDone) || p.Failed.Has(bit) != (want == hasFail) ||
				p.Skipped.Has(bit) != (want == isLeft) || p.Ready.Has(bit) && want != isReady ||
				want == isReady && !p.Ready.Has(bit) && !before.Open[s].Has(bit) {
				t.Fatalf("item %d at step %d: done %v, failed %v, skipped %v, ready %v; want %c (%s)", bit, s,
					p.Done.Has(bit), p.Failed.Has(bit), p.Skipped.Has(bit), p.Ready.Has(bit), want, items[bit].places)
			}
			all := p.Final().Or(p.Ready)
			if _, hi := all.Bounds(); hi > bitfield.Size {
				t.Fatal("past the end")
			}
		}
	}
}

func (g *Graph) all() (steps []workqueue.Step) {
	for s := range g.Steps {
		steps = append(steps, workqueue.Step(s))
	}
	return steps
}
