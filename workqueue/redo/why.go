package redo

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
)

// explain counts the items of a named step that were wanted and not taken, by what is the matter with them.
func (r *redo) explain(c *blockPlan, s workqueue.Step, sum *stepSum) {
	p := &c.at[s]
	rest := c.wanted[s].AndNot(c.moves[s].reset)
	if rest.Empty() {
		return
	}
	pending, out := rest.And(p.Ready.Or(p.Held)), rest.And(c.live[s])
	sum.pending += int64(pending.Count())
	sum.out += int64(out.Count())
	invalid := rest.And(c.never[s])
	sum.invalid += int64(invalid.Count())
	if sum.waits == nil {
		sum.waits, sum.causes = map[workqueue.Step]int64{}, map[workqueue.Step]int64{}
	}
	r.culprits(c, s, rest.And(p.Skipped), sum.causes)
	waiting := rest.AndNot(pending).AndNot(out).AndNot(p.Final())
	if r.take.live { // else nobody has looked what is in slices
		r.awaited(c, s, waiting, sum.waits)
	}
}

// culprits counts items that are left out of a step, by the steps that failed for them.
func (r *redo) culprits(c *blockPlan, s workqueue.Step, items bitfield.Set, causes map[workqueue.Step]int64) {
	if items.Empty() {
		return
	}
	for _, n := range r.graph.Steps[s].Needs {
		if r.graph.Steps[n].Optional {
			continue
		}
		if failed := items.And(c.at[n].Failed); !failed.Empty() {
			causes[n] += int64(failed.Count())
		}
		r.culprits(c, n, items.And(c.at[n].Skipped), causes)
	}
}

// awaited counts items that wait, by the steps before that have no outcome for them and themselves wait for none.
func (r *redo) awaited(c *blockPlan, s workqueue.Step, items bitfield.Set, waits map[workqueue.Step]int64) {
	if items.Empty() {
		return
	}
	for _, e := range r.graph.Before[s] {
		missing := items.AndNot(c.at[e].Final())
		for _, n := range r.graph.Before[e] {
			missing = missing.And(c.at[n].Final())
		}
		if !missing.Empty() {
			waits[e] += int64(missing.Count())
		}
	}
}

// notes says for people what was wanted of the named steps and left as it is.
func (r *redo) notes() (notes []string) {
	for _, s := range r.named {
		sum, name := &r.sums[s], r.steps[s].Name
		say := func(n int64, format string, args ...any) {
			if n > 0 {
				notes = append(notes, countOf(n)+fmt.Sprintf(format, args...))
			}
		}
		say(sum.pending, " to be done at step %s anyway", name)
		say(sum.invalid, " invalid: what does not fit the schema of the run is asked of nobody; correct that data: "+
			"tranche run correct %s --items FILE", r.run)
		if !r.take.live {
			say(sum.out, " out at step %s", name)
		}
		for _, cause := range slices.Sorted(maps.Keys(sum.causes)) {
			failed := r.steps[cause].Name
			say(sum.causes[cause], " left out of step %s, because step %s failed for them; reset that step: "+
				"tranche run reset %s --step %s", name, failed, r.run, failed)
		}
		for _, first := range slices.Sorted(maps.Keys(sum.waits)) {
			say(sum.waits[first], " at step %s waiting for step %s", name, r.steps[first].Name)
		}
	}
	return notes
}

// countOf is a number of items, and are or is.
func countOf(n int64) string {
	if n == 1 {
		return "1 item is"
	}
	return control.Grouped(n) + " items are"
}

// NothingToResetError is returned when a selection holds no item that can be reset at its step.
type NothingToResetError struct {
	Run    workqueue.RunID
	Step   string
	Select Selection
	Why    []string // what is the matter with the items, instead
}

func (e *NothingToResetError) Error() string {
	why := strings.Join(e.Why, ", and ")
	switch {
	case why != "":
	case !e.Select.empty():
		why = "the evidence is true of no item that could be reset"
	case len(e.Select.Codes) > 0:
		why = "no item of it failed with code " + strings.Join(e.Select.Codes, " or ") + e.Select.where()
	case len(e.Select.Groups) > 0:
		why = "no item of it failed with a message of group " + strings.Join(e.Select.Groups, " or ") + e.Select.where()
	default:
		why = "it has no items"
	}
	return fmt.Sprintf("nothing to reset at step %s of run %s: %s", e.Step, e.Run, why)
}
