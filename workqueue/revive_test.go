package workqueue_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/start"
)

func (b *bench) cancelRun(run workqueue.RunID) {
	b.Helper()
	if _, err := control.New(b.Store).Cancel(b.Context(), control.Control{Run: run, Actor: "ann"}); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) resumeCancelled(run workqueue.RunID) (control.Controlled, error) {
	return control.New(b.Store).Resume(b.Context(), control.Control{Run: run, Actor: "ann", Reason: "after all"}, nil)
}

// A run that was cancelled goes on where it was: what was out, waited to be tried again, or was not begun with. Late
// answers are worth nothing, and its end is told once more.
func TestACancelledRunGoesOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 20)
	b.Record(storetest.Whole(b.One(run)))
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "LATER", Retry: true}))
	out := b.Claim(run, 2)
	b.PauseRun(run)
	b.cancelRun(run)
	b.Check()
	if claimed := b.Claim(run, storetest.Plenty); len(claimed) > 0 {
		t.Fatal("claimed of a cancelled run")
	}
	done, err := b.resumeCancelled(run)
	if err != nil || done.Items != 16 || len(done.Runs) != 1 {
		t.Fatalf("resumed %+v, %v", done, err)
	}
	b.WantState(run, "running", 2)
	b.WantTally(run, storetest.Tally{Ready: 16, Done: 4})
	b.Check()
	b.Record(storetest.Whole(out[0]), storetest.Whole(out[1]))
	b.WantTally(run, storetest.Tally{Ready: 16, Done: 4})
	if _, err := b.resumeCancelled(run); err == nil || !strings.Contains(err.Error(), "not paused") {
		t.Errorf("resumed twice: %v", err)
	}
	b.cancelRun(run)
	if _, err := b.resumeCancelled(run); err != nil {
		t.Fatal(err)
	}
	b.Finish(run)
	b.WantState(run, "completed", 3)
	b.WantTally(run, storetest.Tally{Done: 20})
	b.WantCompletions(run, 3)
	b.Check()
	if got := b.Actions(run); !slices.Contains(got, "resume by ann") {
		t.Errorf("the audit log has %v", got)
	}
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
			run := b.Load(storetest.Request(), 5)
			b.cancelRun(run)
			b.Exec(`UPDATE batchrun SET from_run = $1 WHERE id = $2`, run, b.Load(storetest.Request(), 5))
			return run
		}},
		{"a load that was given up", func() workqueue.RunID {
			run := b.Load(storetest.Request(), 5)
			b.Exec(`UPDATE batchrun SET state = 'cancelled', sealed_at = NULL WHERE id = $1`, run)
			return run
		}},
		{"cancelled while it was open", func() workqueue.RunID {
			run := b.OpenRun(func(*start.OpenRequest) {})
			b.Add(run, storetest.Names(2))
			b.cancelRun(run)
			return run
		}},
		{"there is nothing to go on with", func() workqueue.RunID { return b.Ended(9, time.Hour) }},
	} {
		run := c.made()
		state, generation := b.State(run)
		if _, err := b.resumeCancelled(run); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v; want %q", err, c.says)
		}
		b.WantState(run, state, generation)
	}
}
