package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue/dispatch"
)

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
	if late := at(0, 1, 2); late != nil {
		t.Errorf("%v are late at once", late)
	}
	if wait := e.next(now); wait != elsewhereWait {
		t.Errorf("it looks again after %s", wait)
	}
	for i, after := range []time.Duration{elsewhereWait, 2 * elsewhereWait} {
		if late := at(after, 10+i, 2); !slices.Equal(late, []string{"stuck"}) {
			t.Errorf("after %s %v are late", after, late)
		}
	}
	if late := at(3*elsewhereWait, 20, 3); late != nil {
		t.Errorf("%v are late although another step is the first", late)
	}
	late := slices.Sorted(slices.Values(at(elsewhereBusy*elsewhereWait, 21, 4)))
	if !slices.Equal(late, []string{"busy", "stuck"}) {
		t.Errorf("%v are late at endpoints that have had work all the time", late)
	}
	if e.seen(now, nil, map[string]bool{"busy": true}); len(e) != 1 {
		t.Errorf("%v is remembered when one endpoint was left out", e)
	}
	if e.seen(now, nil, nil); len(e) != 0 || e.next(now) != 0 {
		t.Errorf("%v is remembered of endpoints without work", e)
	}
}
