package plane

import (
	"testing"

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
