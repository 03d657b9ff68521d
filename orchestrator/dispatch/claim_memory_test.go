package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

func ref(step int) dispatch.StepRef { return dispatch.StepRef{Step: workqueue.Step(step)} }

// A step that its rate keeps waiting is left out until then, and never for so long that a change would be missed.
func TestRestingSteps(t *testing.T) {
	t.Parallel()
	r := rests[dispatch.StepRef]{}
	r.rest(ref(1), 0)
	r.rest(ref(2), 100*time.Millisecond)
	r.rest(ref(3), time.Hour)
	now := time.Now()
	testenv.Same(t, len(r.all(now)), 2, "steps rest")
	if wait := r.next(now); wait <= 0 || wait > 100*time.Millisecond {
		t.Errorf("the first may continue in %s", wait)
	}
	if all := r.all(now.Add(maxRest / 2)); len(all) != 1 || all[0] != ref(3) {
		t.Errorf("later %v rest", all)
	}
	if all := r.all(now.Add(maxRest + time.Second)); len(all) != 0 || len(r) != 0 || r.next(now) != 0 {
		t.Errorf("in the end %v rest", all)
	}
	for i := range 3 * maxRemembered {
		r.rest(ref(i), time.Hour)
	}
	if len(r) > maxRemembered {
		t.Errorf("%d are remembered", len(r))
	}
}

// Among steps with equally few slices out, who waited longest comes first.
func TestTurns(t *testing.T) {
	t.Parallel()
	seen := turns{}
	page := []dispatch.Runnable{{Step: 1, Priority: 3}, {Step: 2}, {Step: 3}, {Step: 4, Live: 1}}
	order := func() (steps []workqueue.Step) {
		seen.order(page)
		for i := range page {
			steps = append(steps, page[i].Step)
		}
		return steps
	}
	for _, first := range []workqueue.Step{2, 3, 2, 3} {
		got := order()
		if got[0] != 1 || got[1] != first || got[3] != 4 {
			t.Errorf("the order is %v; want %d after 1", got, first)
		}
		seen.took(page[1].Ref())
	}
}

// A node takes part at an endpoint of another when the same step has been the first there for a while, and as long as
// it is; not where one step after the other is seen to.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	e := elsewhere{}
	now := time.Now()
	at := func(after time.Duration, busy, stuck int) []string {
		e.seen(now.Add(after), map[string]dispatch.StepRef{"busy": ref(busy), "stuck": ref(stuck)}, nil)
		return e.late(now.Add(after))
	}
	testenv.SameList(t, at(0, 1, 2), nil, "late immediately")
	testenv.Same(t, e.next(now), elsewhereWait, "it looks again after")
	for i, after := range []time.Duration{elsewhereWait, 2 * elsewhereWait} {
		testenv.SameList(t, at(after, 10+i, 2), []string{"stuck"}, "late after %s", after)
	}
	testenv.SameList(t, at(3*elsewhereWait, 20, 3), nil, "late although another step is the first")
	late := slices.Sorted(slices.Values(at(elsewhereBusy*elsewhereWait, 21, 4)))
	testenv.SameList(t, late, []string{"busy", "stuck"}, "are late at endpoints that have had work all the time")
	if e.seen(now, nil, map[string]bool{"busy": true}); len(e) != 1 {
		t.Errorf("%v is remembered when one endpoint was left out", e)
	}
	if e.seen(now, nil, nil); len(e) != 0 || e.next(now) != 0 {
		t.Errorf("%v is remembered of endpoints without work", e)
	}
}
