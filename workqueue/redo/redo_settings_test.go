package redo_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/redo"
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
	b.Check()
}
