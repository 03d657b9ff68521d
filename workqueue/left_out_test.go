package workqueue_test

import (
	"testing"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// seenBy returns what a request of a step carries of item 0, as "-" for a part that is missing.
func (b *bench) seenBy(run workqueue.RunID, step workqueue.Step) (s workqueue.Slice, parts []string) {
	b.Helper()
	claimed := b.ClaimStep(run, step, 1)
	if len(claimed.Slices) != 1 {
		b.Fatalf("step %d has %d slices to claim; want 1: %s", step, len(claimed.Slices), b.Dump(run))
	}
	mask := bitfield.Of(0)
	testenv.NoError(b, dispatch.New(b.Store).EachInput(b.Context(), dispatch.InputRequest{Run: run, Mask: &mask,
		Inputs: claimed.Work.Inputs},
		func(in dispatch.Input) bool {
			for _, p := range in.Parts {
				data := "missing"
				if !p.Missing {
					data = string(p.Data)
				}
				parts = append(parts, data)
			}
			return true
		}))
	return claimed.Slices[0], parts
}

// A step that is left out this time has no part, whatever it had before; when the same part comes back, who went on
// without it sees it again.
func TestPartOfAStepThatIsLeftOut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Planned(storetest.Need("source"), storetest.Optional(storetest.Need("extra", 0)),
		storetest.Optional(storetest.Need("other")), storetest.Need("page", 1, 2)), 1)
	again := func(step string) {
		t.Helper()
		testenv.Must(redo.New(b.Store).Reset(t.Context(), redo.ResetRequest{Run: run, Actor: "test",
			Select: redo.Selection{Step: step, Keys: []string{"C0"}}}))(t)
	}
	want := func(extra string) {
		t.Helper()
		s, parts := b.seenBy(run, 3)
		if len(parts) != 2 || parts[0] != extra {
			t.Errorf("the page sees %q of the extra; want %q", parts, extra)
		}
		b.Record(storetest.Whole(s))
		b.Check()
	}
	for step := range workqueue.Step(3) {
		b.RecordStep(run, step)
	}
	want(`{"of":0}`)
	again("source")
	b.RecordStep(run, 0, 0) // fails: the extra is left out
	want("missing")
	again("source")
	b.RecordStep(run, 0)
	b.RecordStep(run, 1) // the same bytes as at first
	want(`{"of":0}`)
	again("source")
	b.RecordStep(run, 0)
	b.WantState(run, "completed", 4) // nothing has changed, so nothing was redone
	b.WantCompletions(run, 1, 2, 3, 4)
	b.Check()
}
