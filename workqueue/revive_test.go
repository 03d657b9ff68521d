package workqueue_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/start"
)

func (b *bench) cancelRun(run workqueue.RunID) {
	b.Helper()
	if _, err := control.New(b.store).Cancel(b.Context(), control.Control{Run: run, Actor: "ann"}); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) resumeCancelled(run workqueue.RunID) (control.Controlled, error) {
	return control.New(b.store).Resume(b.Context(), control.Control{Run: run, Actor: "ann", Reason: "after all"}, nil)
}

// A run that was cancelled goes on where it was: what was out, waited to be tried again, or was not begun with. Late
// answers are worth nothing, and its end is told once more.
func TestACancelledRunGoesOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(request(), 20)
	b.record(whole(b.one(run)))
	b.record(faulty(b.one(run), workqueue.SlotError{Code: "LATER", Retry: true}))
	out := b.claim(run, 2)
	b.pauseRun(run)
	b.cancelRun(run)
	b.check()
	if claimed := b.claim(run, plenty); len(claimed) > 0 {
		t.Fatal("claimed of a cancelled run")
	}
	done, err := b.resumeCancelled(run)
	if err != nil || done.Items != 16 || len(done.Runs) != 1 {
		t.Fatalf("resumed %+v, %v", done, err)
	}
	b.wantState(run, "running", 2)
	b.wantTally(run, tally{ready: 16, done: 4})
	b.check()
	b.record(whole(out[0]), whole(out[1]))
	b.wantTally(run, tally{ready: 16, done: 4})
	if _, err := b.resumeCancelled(run); err == nil || !strings.Contains(err.Error(), "not paused") {
		t.Errorf("resumed twice: %v", err)
	}
	b.cancelRun(run)
	if _, err := b.resumeCancelled(run); err != nil {
		t.Fatal(err)
	}
	b.finish(run)
	b.wantState(run, "completed", 3)
	b.wantTally(run, tally{done: 20})
	b.wantCompletions(run, 3)
	b.check()
	if got := b.actions(run); !slices.Contains(got, "resume by ann") {
		t.Errorf("the audit log has %v", got)
	}
}

// So does one of several steps: each item at the step that it was at.
func TestACancelledRunOfSeveralStepsGoesOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(planned(need("a"), need("b", 0), need("c", 0, 1)), 12)
	b.recordStep(run, 0)
	if len(b.claimStep(run, 1, 1).Slices) != 1 {
		t.Fatal("nothing was claimed of the second step")
	}
	b.cancelRun(run)
	if done, err := b.resumeCancelled(run); err != nil || done.Items != 12 {
		t.Fatalf("resumed %+v, %v", done, err)
	}
	b.check()
	for step := range workqueue.Step(2) {
		b.recordStep(run, step+1)
	}
	b.wantState(run, "completed", 2)
	b.wantCounts(run, 12, 0)
	b.check()
}

// What cannot go on says why, and what to do instead.
func TestACancelledRunThatCannotGoOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		says string
		made func() workqueue.RunID
	}{
		{"carries it on; its items would be done twice", func() workqueue.RunID {
			run := b.load(request(), 5)
			b.cancelRun(run)
			b.exec(`UPDATE batchrun SET from_run = $1 WHERE id = $2`, run, b.load(request(), 5))
			return run
		}},
		{"a load that was given up", func() workqueue.RunID {
			run := b.load(request(), 5)
			b.exec(`UPDATE batchrun SET state = 'cancelled', sealed_at = NULL WHERE id = $1`, run)
			return run
		}},
		{"cancelled while it was open", func() workqueue.RunID {
			run := b.openRun(func(*start.OpenRequest) {})
			b.add(run, names(2))
			b.cancelRun(run)
			return run
		}},
		{"there is nothing to go on with", func() workqueue.RunID { return b.ended(9, time.Hour) }},
	} {
		run := c.made()
		state, generation := b.state(run)
		if _, err := b.resumeCancelled(run); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v; want %q", err, c.says)
		}
		b.wantState(run, state, generation)
	}
}
