package dispatch_test

import (
	"context"
	"slices"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// claimAll claims of everything that a look finds, in one transaction.
func (b *bench) claimAll(ctx context.Context, session workqueue.SessionID, most int) []dispatch.Claimed {
	found, err := dispatch.New(b.Store).RunnableSteps(ctx, dispatch.Search{})
	if err != nil || len(found.Steps) == 0 {
		if err != nil && ctx.Err() == nil {
			b.Errorf("look for work: %v", err)
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
	if n := len(taken(b.claimAll(t.Context(), b.Session, storetest.Plenty))); n != 10 {
		t.Errorf("%d slices at first; want 3 of each large run, a quarter of 12, and the one of the small run", n)
	}
	for len(taken(b.claimAll(t.Context(), b.Session, storetest.Plenty))) > 0 {
	}
	if n := b.live(small); n != 1 {
		t.Errorf("the small run has %d slices out; want the one that it has", n)
	}
	for _, run := range runs {
		if n := b.live(run); n < 3 || n > 4 {
			t.Errorf("a run has %d slices out; want its share, 3 or 4", n)
		}
	}
	if found := b.runnable(); len(found) != 0 {
		t.Errorf("the endpoint is full, and yet %+v", found)
	}
	b.budget(0)
	if n := len(taken(b.claimAll(t.Context(), b.Session, 7))); n != 7 {
		t.Errorf("%d slices; want 7, as many as were asked for", n)
	}
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
	if found := b.runnable(); len(found) != 0 {
		t.Errorf("the endpoint takes no more of automatic steps, and yet %+v", found)
	}
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
func TestMarkSentWaitsForNobody(t *testing.T) {
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
	if left, err = settle.New(b.Store).MarkSent(t.Context(), left); err != nil || len(left) != 0 {
		t.Errorf("left over are %+v, %v", left, err)
	}
	b.Record(storetest.Whole(out[0]))
	if left, err = settle.New(b.Store).MarkSent(t.Context(), marks); err != nil || len(left) != 0 {
		t.Errorf("left over are %+v, %v although the reply is recorded and the other is marked", left, err)
	}
	if n := b.Number(`SELECT count(*) FROM work_slice WHERE state = 'sent'`); n != 1 {
		t.Errorf("%d slices are sent", n)
	}
}
