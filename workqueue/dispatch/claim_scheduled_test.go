package dispatch_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// again asks for the first items of a slice to be retried; the others are done.
func again(s workqueue.Slice, n int) settle.Answer {
	a := storetest.Whole(s)
	for i := range min(n, len(a.Slots)) {
		a.Slots[i].Result, a.Slots[i].Err = nil, &workqueue.SlotError{Code: "flaky", Message: "m", Retry: true}
	}
	return a
}

// Retries that are due at the same time come back together, up to a chunk, and keep their counts.
func TestDueRetriesArePutTogether(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(10), 200)
	for _, s := range b.Claim(run, storetest.Plenty) {
		b.Record(again(s, 3))
	}
	b.WantTally(run, storetest.Tally{Live: 60, Done: 140})
	claimed := b.Claim(run, storetest.Plenty)
	if len(claimed) != 7 || b.Disjoint(claimed) != 60 { // threes do not fill a ten
		t.Errorf("%d slices of %d items; want 7 of 60", len(claimed), b.Disjoint(claimed))
	}
	for _, s := range claimed {
		if s.Mask.Count() > 10 || s.Attempt != 2 || s.Failures != 1 || s.Cause != workqueue.CauseRetry {
			t.Errorf("a slice of %d items, %+v", s.Mask.Count(), s.Cause)
		}
	}
	b.Check()
	b.Record(again(claimed[0], 1), again(claimed[1], 1)) // a second failure, and the others
	for _, s := range claimed[2:] {
		b.Record(storetest.Whole(s))
	}
	last := b.Claim(run, storetest.Plenty)
	if len(last) != 1 || last[0].Mask.Count() != 2 || last[0].Attempt != 3 || last[0].Failures != 2 {
		t.Errorf("the last are %+v", last)
	}
	for _, s := range last {
		b.Record(storetest.Whole(s))
	}
	b.WantState(run, "completed", 1)
	b.Check()
}

// Chunks that failed as a whole stay as they are: how they are grouped is how the culprits are found.
func TestHalvesAreNotPutTogether(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(8)
	req.Steps[0].MaxAttempts = 1
	run := b.Load(req, 16)
	crash := &workqueue.SlotError{Code: "crash", Message: "m", Retry: true}
	for _, s := range b.Claim(run, storetest.Plenty) {
		b.Record(settle.Answer{Slice: s.ID, Endpoint: storetest.Endpoint, Service: "test", Failure: crash})
	}
	halves := b.Claim(run, storetest.Plenty)
	if len(halves) != 4 || b.Disjoint(halves) != 16 {
		t.Errorf("%d slices: %s", len(halves), b.Dump(run))
	}
	b.Check()
}

// A claim for few slices merges what it looks at and leaves the rest.
func TestMergingKeepsToTheLimit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(10), 400)
	for _, s := range b.Claim(run, storetest.Plenty) {
		b.Record(again(s, 1))
	}
	claimed := b.Claim(run, 2)
	if len(claimed) != 1 || claimed[0].Mask.Count() != 8 { // four are looked at for each
		t.Errorf("%d slices: %s", len(claimed), b.Dump(run))
	}
	b.Check()
	b.Record(storetest.Whole(claimed[0]))
	b.Finish(run)
	b.WantState(run, "completed", 1)
	b.Check()
}

// A size that was turned down holds for what is retried as well.
func TestDueSlicesAreCutToTheChunk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(100), 100)
	crash := &workqueue.SlotError{Code: "crash", Message: "m", Retry: true}
	whole100 := b.One(run)
	b.Record(settle.Answer{Slice: whole100.ID, Endpoint: storetest.Endpoint, Service: "test", Failure: crash})
	b.Exec(`UPDATE run_step SET chunk = 30`)
	b.Exec(`UPDATE work_slice SET not_before = tranche_now() WHERE state = 'scheduled'`)
	first := b.Claim(run, 3)
	if len(first) != 3 || b.Disjoint(first) != 75 {
		t.Errorf("%d slices: %s", len(first), b.Dump(run))
	}
	b.Check()
	last := b.Claim(run, 3)
	if len(last) != 1 || last[0].Mask.Count() != 25 {
		t.Errorf("then %d slices: %s", len(last), b.Dump(run))
	}
	for _, s := range append(first, last...) {
		if s.Attempt != first[0].Attempt || s.Failures != first[0].Failures || s.Root != whole100.ID {
			t.Errorf("a piece is of attempt %d, %d failures, root %s", s.Attempt, s.Failures, s.Root)
		}
		b.Record(storetest.Whole(s))
	}
	b.WantState(run, "completed", 1)
	b.Check()
}
