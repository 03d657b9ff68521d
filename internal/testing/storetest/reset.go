package storetest

import (
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// Rerun runs items of a run again.
func (b *Bench) Rerun(run workqueue.RunID, sel redo.Selection) redo.Rerun {
	b.Helper()
	out, err := redo.New(b.Store).Rerun(b.Context(), redo.RerunRequest{Run: run, Select: sel, Actor: "test"})
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// Damaged is a completed run of n items of which some failed: with code "even" where the ordinal is an even multiple of
// three, with "odd" where it is an odd one.
func (b *Bench) Damaged(n int) (run workqueue.RunID, even, odd int) {
	b.Helper()
	run = b.Load(Chunked(500), n)
	for _, s := range b.Claim(run, Plenty) {
		a := Whole(s)
		for i := range a.Slots {
			slot := &a.Slots[i]
			switch {
			case slot.Ordinal%6 == 0:
				slot.Result, slot.Err = nil, &workqueue.SlotError{Code: "even", Message: "m"}
				even++
			case slot.Ordinal%3 == 0:
				slot.Result, slot.Err = nil, &workqueue.SlotError{Code: "odd", Message: "m"}
				odd++
			}
		}
		b.Record(a)
	}
	b.WantState(run, "completed", 1)
	return run, even, odd
}
