package report_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/report"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// A step that a later version of a plan has is none of the business of runs that started before: they go on beside runs
// of the new version, are done again as they were, and are compared with them by what each of them came to.
func TestAStepAddedToThePlan(t *testing.T) {
	t.Parallel()
	b := setup(t)
	before := b.Load(storetest.Planned(storetest.Need("accounts"), storetest.Need("statement", 0)), 8)
	first := b.ClaimStep(before, 0, storetest.Plenty).Slices
	b.Record(storetest.Whole(first[0]))
	after := b.Load(storetest.Planned(storetest.Need("accounts"), storetest.Need("interest", 0),
		storetest.Need("statement", 0, 1)), 8)
	second := b.ClaimStep(after, 0, storetest.Plenty).Slices
	b.Record(append([]settle.Answer{storetest.Except(storetest.Whole(second[0]), 0)}, storetest.Whole(first[1]),
		storetest.Whole(second[1]))...)
	b.WantAt(before, 1, storetest.StepTally{Ready: 8})
	b.WantAt(after, 1, storetest.StepTally{Ready: 7, Skipped: 1})
	b.WantAt(after, 2, storetest.StepTally{Waiting: 7, Skipped: 1})
	b.RecordStep(before, 1)
	b.WantState(before, "completed", 1)
	b.WantCounts(before, 8, 0)

	b.RecordStep(after, 1)
	for _, s := range b.ClaimStep(after, 2, storetest.Plenty).Slices {
		a := storetest.Whole(s)
		for i := range a.Slots {
			if a.Slots[i].Ordinal == 5 {
				a.Slots[i].Result = []byte(`{"with":"interest"}`)
			}
		}
		b.Record(a)
	}
	b.WantState(after, "completed", 1)
	_, counts := b.compare(after, before)
	if counts[report.ChangeNone] != 6 || counts[report.ChangeResult] != 1 ||
		counts[report.ChangeNewlyFailing] != 1 {
		t.Errorf("the new version gives other results: %v; want 1 changed and 1 that fails now", counts)
	}

	reset, err := redo.New(b.Store).Reset(t.Context(), redo.ResetRequest{Run: before, Actor: "test",
		Select: redo.Selection{Step: "statement", All: true}})
	if err != nil || reset.Generation != 2 {
		t.Fatalf("reset of the run of the earlier version: %+v, %v", reset, err)
	}
	if n := b.RecordStep(before, 1); n != 8 {
		t.Errorf("%d items were composed again", n)
	}
	b.WantState(before, "completed", 2)
	b.WantState(after, "completed", 1)
	b.Check()
}
