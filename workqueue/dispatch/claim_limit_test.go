package dispatch_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/start"
)

// budget sets the endpoint's budget of requests.
func (b *bench) budget(n int) {
	b.Helper()
	change := pacestore.EndpointChange{Endpoint: storetest.Endpoint, MaxInFlight: &n}
	testenv.Must(pacestore.New(b.Store).ChangeEndpoint(b.Context(), change, "ann"))(b)
}

// ask is a claim with what it says beside the slices.
func (b *bench) ask(run workqueue.RunID) dispatch.Claimed {
	b.Helper()
	claimed := testenv.Must(dispatch.New(b.Store).Claim(b.Context(), b.ClaimRequest(run, storetest.Plenty)))(b)
	return claimed
}

// wantClaim fails the test unless a claim brings so many slices and was kept from more by the bound.
func (b *bench) wantClaim(run workqueue.RunID, slices int, bound pacestore.Bound) []workqueue.Slice {
	b.Helper()
	claimed := b.ask(run)
	if len(claimed.Slices) != slices || claimed.Bound != bound {
		b.Errorf("a claim brought %d slices, bound %q; want %d, %q", len(claimed.Slices), claimed.Bound, slices, bound)
	}
	return claimed.Slices
}

// automatic leaves the limit in flight to the nodes.
func automatic(chunk int) start.LoadRequest {
	req := storetest.Chunked(chunk)
	req.Steps[0].InFlight, req.Steps[0].InFlightAuto = 1000, true
	return req
}

func TestBudgetAndPaceBoundClaims(t *testing.T) {
	t.Parallel()
	b := setup(t)
	auto, fixed := b.Load(automatic(4), 400), b.Load(storetest.Chunked(4), 400)
	b.Exec(`UPDATE endpoint_pace SET in_flight = 5`)
	b.wantClaim(auto, 5, dispatch.BoundAuto)
	b.wantClaim(auto, 0, dispatch.BoundAuto)
	if n := len(b.Claim(fixed, 30)); n != 30 {
		t.Errorf("%d slices of a step with a limit of its own; what nodes found holds for automatic ones", n)
	}
	b.budget(37)
	b.wantClaim(fixed, 2, dispatch.BoundEndpoint)
	b.wantClaim(auto, 0, dispatch.BoundEndpoint)
	b.budget(0)
	b.wantClaim(fixed, 68, dispatch.BoundStep)
	b.Check()
}

// A step that was loaded before endpoints had paces gets one with its first claim.
func TestClaimMakesAMissingPace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(automatic(4), 400)
	b.Exec(`DELETE FROM endpoint_pace`)
	b.wantClaim(run, 16, dispatch.BoundAuto)
	if n := b.Number(`SELECT count(*) FROM endpoint_pace WHERE endpoint = $1`, storetest.Endpoint); n != 1 {
		t.Errorf("%d paces", n)
	}
}

// While others have work, what becomes free goes to who has the least, whoever asks first.
func TestFreedSlotsGoToTheRunWithTheFewest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.budget(12)
	x := b.Load(storetest.Chunked(4), 4000)
	out := b.wantClaim(x, 12, dispatch.BoundEndpoint)
	y, z := b.Load(storetest.Chunked(4), 4000), b.Load(storetest.Chunked(4), 4000)
	for range 8 {
		b.Record(storetest.Whole(out[0]))
		out = out[1:]
		if claimed := b.ask(x); len(claimed.Slices) != 0 || claimed.Bound != dispatch.BoundShare ||
			claimed.Wait <= 0 {
			t.Fatalf("a run with %d slices out got %d more, %+v", len(out), len(claimed.Slices), claimed)
		}
		steps := b.runnable()
		if steps[0].Run == x {
			t.Fatalf("the run with the most out is asked first: %+v", steps)
		}
		if n := len(b.Claim(steps[0].Run, storetest.Plenty)); n != 1 {
			t.Fatalf("%d slices; want the one that became free", n)
		}
	}
	for _, run := range []workqueue.RunID{x, y, z} {
		if n := b.live(run); n != 4 {
			t.Errorf("a run has %d slices out; want a third of 12", n)
		}
	}
	b.Check()
}

func (b *bench) live(run workqueue.RunID) int {
	b.Helper()
	return b.Number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND state IN ('claimed', 'sent')`, run)
}

func (b *bench) runnable() []dispatch.Runnable {
	b.Helper()
	found := testenv.Must(dispatch.New(b.Store).RunnableSteps(b.Context(), dispatch.Search{}))(b)
	return found.Steps
}

// Slots are not kept for runs that cannot use them.
func TestSharesLeaveNothingIdle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.budget(10)
	x := b.Load(storetest.Chunked(4), 4000)
	small := b.Load(storetest.Chunked(4), 4)
	b.wantClaim(x, 5, dispatch.BoundShare)
	b.wantClaim(small, 1, dispatch.BoundNone)
	b.wantClaim(x, 4, dispatch.BoundEndpoint)

	narrow := storetest.Chunked(4)
	narrow.Steps[0].InFlight = 1
	y := b.Load(narrow, 4000)
	b.budget(20)
	b.wantClaim(y, 1, dispatch.BoundStep)
	b.wantClaim(x, 9, dispatch.BoundEndpoint) // y is at its own limit

	held := b.Load(storetest.Chunked(4), 4000)
	b.Exec(`UPDATE batchrun SET hold = 'operator', held_at = tranche_now() WHERE id = $1`, held)
	slow := storetest.Chunked(4)
	slow.Steps[0].Rate = 1
	b.Load(slow, 4000)
	b.Exec(`UPDATE run_step SET tokens = -100, tokens_at = tranche_now() WHERE rate IS NOT NULL`)
	b.budget(30)
	b.wantClaim(x, 10, dispatch.BoundEndpoint)
	b.Check()
}

func TestUrgentRunsComeFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.budget(10)
	low := b.Load(storetest.Chunked(4), 4000)
	req := storetest.Chunked(4)
	req.Priority = 5
	urgent := b.Load(req, 4000)
	if steps := b.runnable(); len(steps) != 2 || steps[0].Run != urgent || steps[0].Priority != 5 {
		t.Errorf("the order is %+v", steps)
	}
	mine := b.wantClaim(low, 5, dispatch.BoundShare)
	b.wantClaim(urgent, 5, dispatch.BoundEndpoint) // it need not share with one that is less urgent
	for _, s := range mine[:4] {
		b.Record(storetest.Whole(s))
		b.wantClaim(b.runnable()[0].Run, 1, dispatch.BoundEndpoint)
	}
	if n := b.live(urgent); n != 9 {
		t.Errorf("the urgent run has %d slices out; want those that became free too", n)
	}
	b.Check()
}
