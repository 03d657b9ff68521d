package dispatch_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

func TestClaimCutsEvenly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(500), 4*455)
	claimed := b.Claim(run, storetest.Plenty)
	for _, s := range claimed {
		if s.Mask.Count() != 455 || s.Attempt != 1 || s.Cause != workqueue.CauseReady || s.Generation != 1 {
			t.Errorf("a slice of %d items, %+v; want 455", s.Mask.Count(), s.Cause)
		}
	}
	if len(claimed) != 4 || b.Disjoint(claimed) != 4*455 {
		t.Errorf("%d slices; want 4", len(claimed))
	}
	b.Check()
}

// With every ready block locked by recorders a claim waits for one of them instead of coming back empty.
func TestClaimWaitsForLockedBlocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(100), 8192)
	release := b.HoldRows(`SELECT 1 FROM work_block WHERE run_id = $1 FOR NO KEY UPDATE`, run)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	got := make(chan int, 1)
	go func() {
		claimed, err := dispatch.New(b.Store).Claim(ctx, b.ClaimRequest(run, 5))
		for errors.Is(err, workqueue.ErrBusy) { // as a node does: the commit comes late on a slow machine
			claimed, err = dispatch.New(b.Store).Claim(ctx, b.ClaimRequest(run, 5))
		}
		testenv.Same(t, err, nil, "the claim")
		got <- len(claimed.Slices)
	}()
	b.Until("the claim waits for the lock", func() bool { return b.Waiters() == 1 })
	release()
	testenv.Same(t, <-got, 5, "slices that the claim brought")
	b.Check()
}

// Chunks are of the size that was learned, as far as the step allows, and never above a cap while it holds.
func TestSizeOfAutomaticChunks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(8192)
	req.Steps[0].ChunkAuto = true
	for _, c := range []struct {
		set  string
		want int
	}{
		{`SET changed_at = tranche_now()`, workqueue.DefaultAutoChunk},
		{`SET chunk = 64`, 64},
		{`SET chunk_cap = 16, chunk_cap_until = tranche_now() + interval '1 hour'`, 16},
		{`SET chunk_cap_until = tranche_now()`, 64},
		{`SET chunk = 8000`, 8000},
	} {
		run := b.Load(req, 8000)
		b.Exec(`UPDATE endpoint_pace ` + c.set)
		testenv.Same(t, itemsOf(b.Claim(run, 1)), c.want, "%s: items of a chunk", c.set)
	}
	req.Steps[0].ChunkBytes = 66 * 20 // twenty items of two bytes and their envelopes
	testenv.Same(t, itemsOf(b.Claim(b.Load(req, 8000), 1)), 20, "items of a chunk")
}

// claimAll claims of everything that a look finds, in one transaction.
func (b *bench) claimAll(ctx context.Context, session workqueue.SessionID, most int) []dispatch.Claimed {
	found, err := dispatch.New(b.Store).RunnableSteps(ctx, dispatch.Search{})
	if err != nil || len(found.Steps) == 0 {
		if err != nil && ctx.Err() == nil {
			b.Errorf("find work: %v", err)
		}
		return nil
	}
	reqs := make([]dispatch.ClaimRequest, len(found.Steps))
	for i := range found.Steps {
		reqs[i] = dispatch.ClaimRequest{Session: session, Run: found.Steps[i].Run, Step: found.Steps[i].Step,
			MaxSlices: storetest.Plenty, MaxBytes: 1 << 20}
	}
	claimed, err := dispatch.New(b.Store).ClaimAll(ctx, reqs, most)
	if err != nil && ctx.Err() == nil {
		b.Logf("claim: %v", err) // the others hold the step for long on a slow machine
	}
	return claimed
}

func taken(claimed []dispatch.Claimed) (all []workqueue.Slice) {
	for i := range claimed {
		all = append(all, claimed[i].Slices...)
	}
	return all
}

// One transaction takes of many runs, as if each had been claimed of by itself: no run more than its share, all
// together no more than the endpoint may have, or the claim was to take.
func TestClaimAllTakesAsOneByOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.budget(12)
	runs := []workqueue.RunID{b.Load(storetest.Chunked(4), 4000), b.Load(storetest.Chunked(4), 4000),
		b.Load(storetest.Chunked(4), 4000)}
	small := b.Load(storetest.Chunked(4), 4)
	testenv.Same(t, len(taken(b.claimAll(t.Context(), b.Session, storetest.Plenty))), 10, "slices at first")
	for len(taken(b.claimAll(t.Context(), b.Session, storetest.Plenty))) > 0 {
	}
	testenv.Same(t, b.live(small), 1, "slices of the small run that are out")
	for _, run := range runs {
		if n := b.live(run); n < 3 || n > 4 {
			t.Errorf("a run has %d slices out; want its share, 3 or 4", n)
		}
	}
	testenv.Same(t, len(b.runnable()), 0, "steps are runnable although the endpoint is full")
	b.budget(0)
	testenv.Same(t, len(taken(b.claimAll(t.Context(), b.Session, 7))), 7, "slices")
	b.Check()
}

// A look finds steps by the endpoint that they have now, the most urgent first however many there are, and passes by
// those that are full and those whose runs are over.
func TestLookGoesByEndpoints(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var runs []workqueue.RunID
	for range 70 {
		runs = append(runs, b.Load(automatic(4), 8))
	}
	last := runs[len(runs)-1]
	b.Set(control.RunChange{Run: last, Priority: new(9)})
	if found := b.runnable(); found[0].Run != last || len(found) > 64 {
		t.Errorf("of %d the first is of run %s; want the urgent one", len(found), found[0].Run)
	}
	b.Exec(`UPDATE endpoint_pace SET in_flight = 3`)
	for len(taken(b.claimAll(t.Context(), b.Session, storetest.Plenty))) > 0 {
	}
	testenv.Same(t, len(b.runnable()), 0, "steps are runnable although the endpoint takes no more of automatic steps")
	first := runs[9] // which has nothing out
	b.Set(control.RunChange{Run: first, Settings: storetest.Chunking(0, 2)})
	if found := b.runnable(); len(found) != 1 || found[0].Run != first {
		t.Errorf("one has a limit of its own now, and found are %+v", found)
	}
	b.Set(control.RunChange{Run: first, Settings: control.StepChange{Endpoint: "second",
		StepOverrides: workqueue.StepOverrides{InFlight: &workqueue.Adaptive{Auto: true}}}})
	if found := b.runnable(); len(found) != 1 || found[0].Run != first || found[0].Endpoint != "second" ||
		found[0].Place != "second" {
		t.Errorf("one has another endpoint now, and found are %+v", found)
	}
	for _, run := range runs {
		testenv.Must(control.New(b.Store).Cancel(t.Context(), control.Control{Run: run, Actor: "test"}))(t)
	}
	found, err := dispatch.New(b.Store).RunnableSteps(t.Context(), dispatch.Search{})
	if err != nil || len(found.Steps) != 0 || len(found.Without) != 0 {
		t.Errorf("all are cancelled, and a look finds %+v, %v", found, err)
	}
	b.Check()
}

// What waits for its time goes to the endpoint that its step has when it is due, also when its reply is recorded, or it
// is given back, after the change.
func TestWhatWaitsMovesWithItsStep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 12)
	out := b.Claim(run, storetest.Plenty)
	b.Send(out[0], out[1])
	b.Set(control.RunChange{Run: run, Settings: control.StepChange{Endpoint: "second"}})
	b.Record(storetest.Faulty(out[0], workqueue.SlotError{Code: "flaky", Message: "again", Retry: true}))
	testenv.NoError(t, settle.New(b.Store).Postpone(t.Context(), b.Session, out[2].ID, 0, context.Canceled))
	b.Exec(`UPDATE work_slice SET not_before = tranche_now() WHERE state = 'scheduled'`)
	if found := b.runnable(); len(found) != 1 || found[0].Place != "second" {
		t.Errorf("found %+v", found)
	}
	again := b.Claim(run, storetest.Plenty)
	if len(again) != 2 || slices.ContainsFunc(again, func(s workqueue.Slice) bool { return s.Endpoint != "second" }) {
		t.Errorf("claimed %+v", again)
	}
}

// A slice that its recorder holds is left over for another mark, and waits for no one.
func TestMarkSentDoesNotWait(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 8)
	out := b.Claim(run, storetest.Plenty)
	release := b.HoldRows(`SELECT 1 FROM work_slice WHERE id = $1 FOR NO KEY UPDATE`, out[0].ID)
	marks := []workqueue.Sent{{ID: out[0].ID, StreamSeq: 1, StreamsEpoch: 1},
		{ID: out[1].ID, StreamSeq: 2, StreamsEpoch: 1}}
	left, err := settle.New(b.Store).MarkSent(t.Context(), marks)
	if err != nil || len(left) != 1 || left[0].ID != out[0].ID {
		t.Fatalf("left over are %+v, %v; want the one that is held", left, err)
	}
	release()
	testenv.Same(t, len(testenv.Must(settle.New(b.Store).MarkSent(t.Context(), left))(t)), 0, "left over once released")
	b.Record(storetest.Whole(out[0]))
	testenv.Same(t, len(testenv.Must(settle.New(b.Store).MarkSent(t.Context(), marks))(t)), 0,
		"left over although the reply is recorded and the other is marked")
	testenv.Same(t, b.Number(`SELECT count(*) FROM work_slice WHERE state = 'sent'`), 1, "slices are sent")
}

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
	b.Record(storetest.Wholes(claimed[2:])...)
	last := b.Claim(run, storetest.Plenty)
	if len(last) != 1 || last[0].Mask.Count() != 2 || last[0].Attempt != 3 || last[0].Failures != 2 {
		t.Errorf("the last are %+v", last)
	}
	b.Record(storetest.Wholes(last)...)
	b.WantState(run, "completed", 1)
	b.Check()
}

// Chunks that failed entirely stay as they are: how they are grouped is how the culprits are found.
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
