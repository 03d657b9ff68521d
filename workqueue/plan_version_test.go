package workqueue_test

import (
	"testing"

	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/report"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// A step that a later version of a plan has is none of the business of runs that started before: they go on beside runs
// of the new version, are done again as they were, and are compared with them by what each of them came to.
func TestAStepAddedToThePlan(t *testing.T) {
	t.Parallel()
	b := setup(t)
	before := b.load(planned(need("accounts"), need("statement", 0)), 8)
	first := b.claimStep(before, 0, plenty).Slices
	b.record(whole(first[0]))
	after := b.load(planned(need("accounts"), need("interest", 0), need("statement", 0, 1)), 8)
	second := b.claimStep(after, 0, plenty).Slices
	b.record(append([]settle.Answer{except(whole(second[0]), 0)}, whole(first[1]), whole(second[1]))...)
	b.wantAt(before, 1, stepTally{ready: 8})
	b.wantAt(after, 1, stepTally{ready: 7, skipped: 1})
	b.wantAt(after, 2, stepTally{waiting: 7, skipped: 1})
	b.recordStep(before, 1)
	b.wantState(before, "completed", 1)
	b.wantCounts(before, 8, 0)

	b.recordStep(after, 1)
	for _, s := range b.claimStep(after, 2, plenty).Slices {
		a := whole(s)
		for i := range a.Slots {
			if a.Slots[i].Ordinal == 5 {
				a.Slots[i].Result = []byte(`{"with":"interest"}`)
			}
		}
		b.record(a)
	}
	b.wantState(after, "completed", 1)
	_, counts := b.compare(after, before)
	if counts[report.ChangeNone] != 6 || counts[report.ChangeResult] != 1 ||
		counts[report.ChangeNewlyFailing] != 1 {
		t.Errorf("the new version gives other results: %v; want 1 changed and 1 that fails now", counts)
	}

	reset, err := redo.New(b.store).Reset(t.Context(), redo.ResetRequest{Run: before, Actor: "test",
		Select: redo.Selection{Step: "statement", All: true}})
	if err != nil || reset.Generation != 2 {
		t.Fatalf("reset of the run of the earlier version: %+v, %v", reset, err)
	}
	if n := b.recordStep(before, 1); n != 8 {
		t.Errorf("%d items were composed again", n)
	}
	b.wantState(before, "completed", 2)
	b.wantState(after, "completed", 1)
	b.check()
}
