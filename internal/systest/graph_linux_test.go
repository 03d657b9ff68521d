package systest

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/workqueue"
)

// inputsOf is how many parts the functions get at the steps of loadGraph.
var inputsOf = map[string]int{"compose": 2, "index": 1}

// loadGraph makes a run that asks an endpoint for two parts of each item, over the stream and directly, composes those,
// and begins with its last step when all is composed.
func (w *world) loadGraph() workqueue.RunID {
	w.Helper()
	step := func(name string, kind workqueue.Kind, needs ...int) workqueue.StepSpec {
		return workqueue.StepSpec{Name: name, Kind: kind, Endpoint: workqueue.PaceKey(kind, "statement"), Needs: needs,
			Inputs: needs, StepSettings: workqueue.StepSettings{Chunk: chunk, MaxAttempts: 3}}
	}
	last := step("index", workqueue.KindLocal, 2)
	last.Barrier = true
	return w.loadSteps(step("accounts", workqueue.KindEndpoint), step("branches", workqueue.KindRequest),
		step("compose", workqueue.KindLocal, 0, 1), last)
}

// A node is killed at each moment that matters while it gathers, composes, and stands before a barrier. Another goes
// on: each step has one right part of each item, and nobody is to blame.
func TestNodeThatGathersIsKilledAnywhere(t *testing.T) {
	t.Parallel()
	const gathered = 1000
	// One transaction may take all ten chunks of a step.
	for _, point := range []string{
		fault.ClaimCommitted + "=kill@4", fault.PublishAcked + "=kill", fault.FetchDone + "=kill@12",
		fault.RecordBefore + "=kill@3", fault.RecordCommitted + "=kill@3",
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.items = gathered
			w.start("service")
			run := w.loadGraph()
			first := w.start("composer", faultsVariable+"="+point)
			w.wantKilled(first)
			if name, _, _ := strings.Cut(point, "="); !strings.Contains(first.said.String(), "fault fired: "+name) {
				t.Fatal("the fault did not fire")
			}
			t.Logf("killed with %d of %d parts", w.done(run), 4*w.items)
			if w.done(run) == 4*w.items {
				t.Fatal("the run was complete before the fault")
			}
			w.start("composer", sessionVariable+"=1m")
			w.wantParts(run, 4)
			if n := w.number(`SELECT count(*) FROM work_part WHERE run_id = $1`, run); n != 4*w.items {
				t.Errorf("%d parts; want one of each item and step", n)
			}
			if n := w.number(`SELECT count(*) FROM work_slice WHERE cause NOT IN ('ready', 'session') OR failures > 0`); n != 0 {
				t.Errorf("%d slices were made for another cause", n)
			}
		})
	}
}
