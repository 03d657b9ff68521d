package workqueue

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tranchehq/tranche/bitfield"
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
func drawn(text string) *graph {
	var steps []graphStep
	for i := range len(text) {
		switch c := text[i]; c {
		case ' ', '(', ')':
		case '?':
			steps[len(steps)-1].optional = true
		default:
			if i > 0 && text[i-1] != ' ' { // within parentheses
				s := &steps[len(steps)-1]
				s.needs, s.inputs = append(s.needs, Step(c-'a')), append(s.inputs, Step(c-'a'))
				continue
			}
			steps = append(steps, graphStep{name: string(c)})
		}
	}
	return newGraph(steps)
}

func TestGraphReach(t *testing.T) {
	t.Parallel()
	g := drawn("a b(a) c(a) d(bc) e")
	for step, want := range [][]Step{{1, 2, 3}, {3}, {3}, nil, nil} {
		if !slices.Equal(g.after[step], want) {
			t.Errorf("after step %d come %v; want %v", step, g.after[step], want)
		}
	}
	for step, want := range [][]Step{nil, {0}, {0}, {0, 1, 2}, nil} {
		if !slices.Equal(g.before[step], want) {
			t.Errorf("before step %d come %v; want %v", step, g.before[step], want)
		}
	}
	if g.single() || !drawn("a").single() {
		t.Error("a graph of one step is single, and no other")
	}
}

// planesOf makes planes in which item 7 is at the places given, step by step.
func planesOf(places string) []planes {
	at := make([]planes, len(places))
	for i, place := range []byte(places) {
		switch place {
		case isReady:
			at[i].ready.Add(7)
		case isDone:
			at[i].done.Add(7)
		case hasFail:
			at[i].failed.Add(7)
		case isLeft:
			at[i].skipped.Add(7)
		}
	}
	return at
}

// places reads what planesOf writes. A bit in no plane was in flight, if it was, or waits.
func places(was string, now []planes) string {
	text := []byte(was)
	for i := range now {
		switch p := &now[i]; {
		case p.ready.Has(7):
			text[i] = isReady
		case p.done.Has(7):
			text[i] = isDone
		case p.failed.Has(7):
			text[i] = hasFail
		case p.skipped.Has(7):
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
		step            Step
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
		{"a need fails beside one under way", "a b c(ab)", "ff.", 0, hasFail, false, "xfs", false},
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
		g, news := drawn(c.graph), &outcome{}
		if c.outcome == isDone {
			news.done.Add(7)
		} else {
			news.failed.Add(7)
		}
		changed := map[Step]bitfield.Set{}
		if c.changed {
			changed[c.step] = bitfield.Of(7)
		}
		now, final := g.unlock(planesOf(c.at), map[Step]*outcome{c.step: news}, changed)
		if got := places(c.at, now); got != c.want || final.Has(7) != c.final {
			t.Errorf("%s: %s of %s became %s, final %v; want %s, %v", c.name, c.at, c.graph, got, final.Has(7), c.want, c.final)
		}
	}
}

// entity is an item as anyone would write it: its place at each step, one by one, by the rules of the design.
type entity struct {
	g      *graph
	places []byte
}

func (e *entity) is(s Step, places ...byte) bool { return slices.Contains(places, e.places[s]) }

func (e *entity) settled(s Step) bool {
	for _, n := range e.g.steps[s].needs {
		if !e.settled(n) {
			return false
		}
	}
	return e.is(s, isDone, hasFail, isLeft)
}

func (e *entity) open(s Step) bool {
	for _, n := range e.g.steps[s].needs {
		if !e.settled(n) || !e.g.steps[n].optional && !e.is(n, isDone) {
			return false
		}
	}
	return true
}

func (e *entity) shut(s Step) bool {
	for _, n := range e.g.steps[s].needs {
		if !e.g.steps[n].optional && e.is(n, hasFail, isLeft) {
			return true
		}
	}
	return false
}

func (e *entity) final() bool {
	for s := range e.places {
		if !e.is(Step(s), isDone, hasFail, isLeft) {
			return false
		}
	}
	return true
}

// follow lets an outcome have its effect on the steps from one on.
func (e *entity) follow(from Step, altered map[Step]bool) {
	for s := from; int(s) < len(e.places); s++ {
		had := e.is(s, isDone)
		stale := slices.ContainsFunc(e.g.steps[s].inputs, func(n Step) bool { return altered[n] })
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
func (e *entity) reset(step Step, cascade bool) {
	if e.places[step] = waits; e.open(step) {
		e.places[step] = isReady
	}
	for _, s := range e.g.after[step] {
		switch {
		case e.is(s, isReady, flies), cascade && e.is(s, isDone, hasFail), e.is(s, isLeft) && !e.shut(s):
			e.places[s] = waits
		}
	}
}

// drawGraph draws a graph of up to n steps.
func drawGraph(t *rapid.T, n int) *graph {
	steps := make([]graphStep, rapid.IntRange(2, n).Draw(t, "steps"))
	for i := range steps {
		steps[i].name = fmt.Sprint(i)
		steps[i].optional = rapid.IntRange(0, 3).Draw(t, "optional") == 0
		for need := range Step(i) {
			if rapid.IntRange(0, 2).Draw(t, "needs") == 0 {
				steps[i].needs = append(steps[i].needs, need)
				if rapid.IntRange(0, 4).Draw(t, "sees") > 0 {
					steps[i].inputs = append(steps[i].inputs, need)
				}
			}
		}
	}
	return newGraph(steps)
}

// TestUnlockAgainstAnOracle moves many items of a block together through settlements, and holds the planes against an
// oracle that goes item by item. Resets are the oracle's: after one the planes are made anew.
func TestUnlockAgainstAnOracle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g, bits := drawGraph(t, 7), []int{0, 1, 63, 64, 500, bitfield.Size - 1}
		items := map[int]*entity{}
		for _, bit := range bits {
			e := &entity{g, make([]byte, len(g.steps))}
			for s := range e.places {
				if e.places[s] = waits; len(g.steps[s].needs) == 0 {
					e.places[s] = isReady
				}
			}
			items[bit] = e
		}
		for range rapid.IntRange(1, 60).Draw(t, "moves") {
			if rapid.IntRange(0, 9).Draw(t, "reset") == 0 {
				step, cascade := Step(rapid.IntRange(0, len(g.steps)-1).Draw(t, "step")), rapid.Bool().Draw(t, "cascade")
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
func settleSome(t *rapid.T, g *graph, bits []int, items map[int]*entity) {
	at := make([]planes, len(g.steps))
	for _, bit := range bits {
		for s := range at {
			switch items[bit].places[s] {
			case isDone:
				at[s].done.Add(bit)
			case hasFail:
				at[s].failed.Add(bit)
			case isLeft:
				at[s].skipped.Add(bit)
			}
		}
	}
	before := g.outlook(at)
	news, changed, final := map[Step]*outcome{}, map[Step]bitfield.Set{}, bitfield.Set{}
	for _, bit := range bits {
		e := items[bit]
		wasFinal := e.final()
		ready := slices.DeleteFunc(slices.Clone(g.all()), func(s Step) bool { return !e.is(s, isReady) })
		for _, s := range ready {
			if !before.open[s].Has(bit) {
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
				news[s] = &outcome{}
			}
			set := changed[s]
			if e.is(s, isDone) {
				news[s].done.Add(bit)
			} else {
				news[s].failed.Add(bit)
			}
			if rapid.Bool().Draw(t, "changed") {
				set.Add(bit)
			}
			changed[s] = set
		}
		altered := map[Step]bool{}
		touched := false
		for s, set := range changed {
			altered[s] = set.Has(bit)
			all := news[s].all()
			touched = touched || all.Has(bit)
		}
		if touched {
			e.follow(0, altered)
		}
		if e.final() && !wasFinal {
			final.Add(bit)
		}
	}
	now, gotFinal := g.unlock(at, news, changed)
	if gotFinal != final {
		t.Fatalf("final %v; want %v", gotFinal.Count(), final.Count())
	}
	compare(t, bits, items, before, now)
}

func compare(t *rapid.T, bits []int, items map[int]*entity, before outlook, now []planes) {
	for _, bit := range bits {
		for s := range now {
			p, want := &now[s], items[bit].places[s]
			if p.done.Has(bit) != (want == isDone) || p.failed.Has(bit) != (want == hasFail) ||
				p.skipped.Has(bit) != (want == isLeft) || p.ready.Has(bit) && want != isReady ||
				want == isReady && !p.ready.Has(bit) && !before.open[s].Has(bit) {
				t.Fatalf("item %d at step %d: done %v, failed %v, skipped %v, ready %v; want %c (%s)", bit, s,
					p.done.Has(bit), p.failed.Has(bit), p.skipped.Has(bit), p.ready.Has(bit), want, items[bit].places)
			}
			all := p.final().Or(p.ready)
			if _, hi := all.Bounds(); hi > bitfield.Size {
				t.Fatal("past the end")
			}
		}
	}
}

func (g *graph) all() (steps []Step) {
	for s := range g.steps {
		steps = append(steps, Step(s))
	}
	return steps
}
