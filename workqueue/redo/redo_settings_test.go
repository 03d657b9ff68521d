package redo_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Settings that a step has no use for, or that do not say which step they are for, are refused, and change nothing.
func TestSettingsOfStepsOfSeveralKinds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Collecting()
	req.Steps[storetest.Statement].Kind = workqueue.KindLocal
	req.Steps[storetest.Statement].Endpoint = workqueue.TargetKey(workqueue.KindLocal, "render")
	g := &gatherer{bench: b, run: b.Load(req, 8)}
	g.fresh()
	g.fail(storetest.Statement, 3)
	g.work()

	refused := func(what string, err error, want ...string) {
		t.Helper()
		if _, ok := errors.AsType[*workqueue.SettingError](err); !ok {
			t.Errorf("%s: %v; want it refused", what, err)
			return
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", what, err, w)
			}
		}
	}
	_, err := redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: g.run, Actor: "test",
		Select: redo.Selection{Failed: true}, Settings: control.StepChange{Endpoint: "other"}})
	refused("another endpoint for a local function", err, "endpoint other", "step statement", "local:render")
	_, err = control.New(b.Store).SetRun(t.Context(), control.RunChange{Run: g.run, Actor: "test",
		Settings: storetest.Chunking(2, 0)})
	refused("a chunk for no step", err, "several steps", "accounts, transactions")
	b.WantState(g.run, "completed", 1)
	priority := 3
	_, err = control.New(b.Store).SetRun(t.Context(), control.RunChange{Run: g.run, Priority: &priority, Actor: "test"})
	if err != nil {
		t.Errorf("a priority needs no step: %v", err)
	}
	_, err = control.New(b.Store).SetRun(t.Context(), control.RunChange{Run: g.run, Step: "statement", Actor: "test",
		Settings: storetest.Chunking(2, 0)})
	if err != nil {
		t.Error(err)
	}
	g.fresh()
	_, err = redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: g.run, Actor: "test",
		Select: redo.Selection{Failed: true}})
	if err != nil {
		t.Fatal(err)
	}
	g.work()
	b.WantState(g.run, "completed", 2)
	b.Check()
}

// A threshold that is a part of the items is a number from the seal on, also when it was set before.
func TestPartOfTheItemsOfAnOpenRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.OpenRun(nil)
	b.Add(run, storetest.Names(8192))
	half := "50%"
	_, err := control.New(b.Store).SetRun(t.Context(), control.RunChange{Run: run, MaxFailed: &half, Actor: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if n := b.Number(`SELECT count(*) FROM batchrun WHERE id = $1 AND failed_limit IS NULL`, run); n != 1 {
		t.Error("the open run has a limit, of items that are still coming")
	}
	b.Seal(run)
	if n := b.Number(`SELECT failed_limit FROM batchrun WHERE id = $1`, run); n != 4096 {
		t.Errorf("the limit is %d; want half of the items", n)
	}
}

// Nothing would ever let such a step begin.
func TestBarrierThatWaitsForNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Request()
	req.Steps[0].Barrier = true
	if _, err := start.New(b.Store).Load(t.Context(), req, storetest.Keys("C0")); err == nil ||
		!strings.Contains(err.Error(), "barrier") {
		t.Errorf("it was loaded: %v", err)
	}
}
