package dispatch_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

func (b *bench) budget(n int) {
	b.Helper()
	change := pacestore.EndpointChange{Endpoint: storetest.Endpoint, MaxInFlight: &n}
	testenv.Must(pacestore.New(b.Store).ChangeEndpoint(b.Context(), change, "ann"))(b)
}

// ask is a claim with what it says beside the slices.
func (b *bench) ask(run workqueue.RunID) dispatch.Claimed {
	b.Helper()
	return testenv.Must(dispatch.New(b.Store).Claim(b.Context(), b.ClaimRequest(run, storetest.Plenty)))(b)
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
	testenv.Same(t, len(b.Claim(fixed, 30)), 30,
		"slices of a step with a limit of its own; what nodes found holds for automatic ones")
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
	testenv.Same(t, b.Number(`SELECT count(*) FROM endpoint_pace WHERE endpoint = $1`, storetest.Endpoint), 1, "paces")
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
		testenv.MustSame(t, len(b.Claim(steps[0].Run, storetest.Plenty)), 1, "slices")
	}
	for _, run := range []workqueue.RunID{x, y, z} {
		testenv.Same(t, b.live(run), 4, "slices of a run that are out")
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
	b.Exec(`UPDATE run_step SET share = 4 WHERE run_id = $1`, low) // of what runs as urgent as it share
	mine := b.wantClaim(low, 5, dispatch.BoundShare)
	b.wantClaim(urgent, 5, dispatch.BoundEndpoint) // it need not share with one that is less urgent
	for _, s := range mine[:4] {
		b.Record(storetest.Whole(s))
		b.wantClaim(b.runnable()[0].Run, 1, dispatch.BoundEndpoint)
	}
	testenv.Same(t, b.live(urgent), 9, "slices of the urgent run that are out")
	b.Check()
}

// Namespaces have equal parts of an endpoint, however many runs of whatever priority they have, and keep to quotas at
// all endpoints. A namespace without work leaves its part to the others.
func TestNamespacesComeBeforeRuns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.budget(12)
	b.Exec(`INSERT INTO namespace (name) VALUES ('team-a'), ('team-b')`)
	in := func(namespace string, priority int) workqueue.RunID {
		req := storetest.Chunked(4)
		req.Priority = priority
		run := b.Load(req, 4000)
		b.Exec(`UPDATE batchrun SET namespace = $2 WHERE id = $1`, run, namespace)
		return run
	}
	first, second, third, ours := in("default", 9), in("default", 9), in("default", 9), in("team-a", 0)
	b.wantClaim(first, 2, dispatch.BoundShare)
	b.wantClaim(ours, 6, dispatch.BoundShare)
	b.wantClaim(second, 2, dispatch.BoundShare)
	b.wantClaim(third, 2, dispatch.BoundEndpoint)

	b.budget(0)
	b.Exec(`UPDATE namespace SET max_in_flight = 8 WHERE name = 'team-a'`)
	b.wantClaim(ours, 2, dispatch.BoundNamespace)
	if claimed := b.ask(ours); len(claimed.Slices) > 0 || claimed.Bound != dispatch.BoundNamespace || claimed.Wait <= 0 {
		t.Errorf("a run of a namespace with all that it may have got %+v", claimed)
	}
	found := len(b.runnable())
	b.Exec(`UPDATE namespace SET max_in_flight = 9`)
	testenv.Same(t, len(b.runnable()), found+1, "steps are found once the quota is raised")
	more := in("team-a", 0) // claimed of in one transaction
	both := testenv.Must(dispatch.New(b.Store).ClaimAll(t.Context(), []dispatch.ClaimRequest{
		b.ClaimRequest(ours, storetest.Plenty), b.ClaimRequest(more, storetest.Plenty)}, storetest.Plenty))(t)
	testenv.Same(t, len(both[0].Slices)+len(both[1].Slices), 1, "slices of two runs")
	b.Check()
}

// What nodes do themselves stays claimed for as long as the step allows it, and is found by those only who can do it.
func TestClaimOfOwnKinds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	local := storetest.Need("render", 0)
	local.Kind, local.Timeout = workqueue.KindLocal, time.Hour
	local.Endpoint = workqueue.TargetKey(local.Kind, "pdf")
	local.Config = []byte(`{"scale": 2}`)
	run := b.Load(storetest.Planned(storetest.Need("fetch"), local), 4)
	b.RecordStep(run, 0)
	find := func(search dispatch.Search) int {
		t.Helper()
		found := testenv.Must(dispatch.New(b.Store).RunnableSteps(t.Context(), search))(t)
		return len(found.Steps)
	}
	if find(dispatch.Search{}) != 0 || find(dispatch.Search{Locals: []string{"other"}}) != 0 {
		t.Error("a node without the function finds the step")
	}
	testenv.Same(t, find(dispatch.Search{Locals: []string{"pdf"}, NoRoom: []string{local.Endpoint}}), 0,
		"a node without room finds the step")
	testenv.Same(t, find(dispatch.Search{Locals: []string{"pdf", "other"}}), 1,
		"a node with the function does not find the step")
	claimed := b.ClaimStep(run, 1, 1)
	w := claimed.Work
	if w.Kind != workqueue.KindLocal || w.Name != "render" || !bytes.Contains(w.Config, []byte("scale")) ||
		w.Timeout != time.Hour || len(w.Inputs) != 1 {
		t.Errorf("the work is %+v", w)
	}
	left := b.Number(`SELECT extract(epoch FROM deadline - tranche_now())::int FROM work_slice WHERE id = $1`,
		claimed.Slices[0].ID)
	if want := int((time.Hour + dispatch.DefaultClaimTTL).Seconds()); left < want-60 || left > want {
		t.Errorf("the slice has %d seconds; want about %d", left, want)
	}
	b.Expire(b.Session)
	b.Session = b.Open()
	b.Exec(`UPDATE leader SET expires_at = tranche_now()`)
	if n, err := settle.New(b.Store).ReleaseDeadSessions(t.Context(), b.Lead()); n != 1 || err != nil {
		t.Errorf("released %d slices of a dead node, %v", n, err)
	}
	b.RecordStep(run, 1)
	b.WantState(run, "completed", 1)
	b.WantCounts(run, 4, 0)
	b.Check()
}

// The parts that a step sees count in how large its requests get.
func TestCutBySizeOfParts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	large, small := storetest.Need("sees", 0), storetest.Need("blind", 0)
	large.Chunk, small.Chunk, small.Inputs = 100, 100, nil
	run := b.Load(storetest.Planned(storetest.Need("fetch"), large, small), 40)
	for {
		claimed := b.ClaimStep(run, 0, storetest.Plenty).Slices
		if len(claimed) == 0 {
			break
		}
		for _, s := range claimed {
			a := storetest.Whole(s)
			for i := range a.Slots {
				a.Slots[i].Result = bytes.Repeat([]byte{'x'}, 1<<18)
			}
			b.Record(a)
		}
	}
	if s := b.ClaimStep(run, 1, 1).Slices[0]; s.Mask.Count() != 3 { // 1 MiB by 256 KiB and an envelope
		t.Errorf("a request with its parts has %d items; want 3", s.Mask.Count())
	}
	testenv.Same(t, b.ClaimStep(run, 2, 1).Slices[0].Mask.Count(), 40, "items of a request without parts")
}

// A node of a version that knows single requests only would complete such runs with their first step.
func TestOldNodesAndSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const old = `INSERT INTO node_session (id, host, pid, version, expires_at)
		VALUES (gen_random_uuid(), 'web1', 7, 'v0.4', tranche_now() + interval '1 hour')`
	b.Exec(old)
	b.Load(storetest.Request(), 4)
	req := storetest.Planned(storetest.Need("a"), storetest.Need("b", 0))
	req.Session = b.Session
	_, err := start.New(b.Store).Load(t.Context(), req, storetest.Keys("C0"))
	testenv.Says(t, testenv.As[*workqueue.StateError](t, err, "a load"), "web1 (pid 7, version v0.4)", "an old node")
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun`), 1, "runs")
	b.Exec(`UPDATE node_session SET expires_at = tranche_now() WHERE host = 'web1'`)
	run := b.Load(req, 4)
	_, err = b.Pool.Exec(t.Context(), old)
	testenv.Says(t, err, "plans of several steps", "an old node came while the run was in progress")
	b.RecordStep(run, 0)
	b.RecordStep(run, 1)
	b.WantState(run, "completed", 1)
	b.Exec(old)
}

// probeDue makes the endpoint one that is down and may be probed.
func (b *bench) probeDue() {
	b.Helper()
	b.Exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = tranche_now(), probe_at = tranche_now()
		WHERE endpoint = $1`, storetest.Endpoint)
}

func (b *bench) wantProbe(run workqueue.RunID) workqueue.Slice {
	b.Helper()
	if steps := b.runnable(); len(steps) == 0 {
		b.Error("nothing is to be claimed although a probe is due")
	}
	claimed := b.wantClaim(run, 1, dispatch.BoundEndpoint)
	if len(claimed) != 1 {
		b.FailNow()
	}
	probe := claimed[0]
	if probe.Mask.Count() != 1 || probe.Cause != workqueue.CauseProbe || probe.Endpoint != storetest.Endpoint {
		b.Errorf("the probe has %d items, %+v", probe.Mask.Count(), probe.Cause)
	}
	if n := b.Number(`SELECT count(*) FROM endpoint_pace
		WHERE probe_slice = $1 AND probe_at >= changed_at + interval '900 ms'`, probe.ID); n != 1 {
		b.Error("the endpoint does not know the probe")
	}
	testenv.Same(b, len(b.runnable()), 0, "steps are runnable beside the probe")
	b.Check()
	return probe
}

// At an endpoint that is down one item goes out at a time, when a probe is due.
func TestProbeIsCutFromReadyItems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, other := b.Load(storetest.Chunked(10), 100), b.Load(storetest.Chunked(10), 100)
	b.Exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = tranche_now(),
		probe_at = tranche_now() + interval '1 hour'`)
	testenv.Same(t, len(b.runnable()), 0, "steps are runnable although the endpoint is down")
	if claimed := b.ask(run); len(claimed.Slices) != 0 || claimed.Wait < 50*time.Minute {
		t.Errorf("%d slices, wait %s", len(claimed.Slices), claimed.Wait)
	}
	b.probeDue()
	probe := b.wantProbe(run)
	if probe.Attempt != 1 || probe.Failures != 0 || probe.Root != probe.ID {
		t.Errorf("the probe is %+v", probe)
	}
	b.probeDue() // it is out still
	b.wantClaim(run, 0, dispatch.BoundEndpoint)
	b.wantClaim(other, 0, dispatch.BoundEndpoint)
	b.Record(storetest.Whole(probe))
	b.wantProbe(other)
	b.Exec(`UPDATE endpoint_pace SET breaker = 'closed'`)
	b.Finish(run)
	b.WantState(run, "completed", 1)
	b.Check()
}

// With nothing ready a probe is carved from a slice that waits, due or not; a slice of one item goes as it is.
func TestProbeIsCarvedFromAScheduledSlice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(3)
	req.Steps[0].RetryBackoff = time.Hour
	run := b.Load(req, 3)
	cut := b.One(run)
	b.Record(again(cut, 3))
	for left := 2; left > 0; left-- {
		b.probeDue()
		probe := b.wantProbe(run)
		if probe.Attempt != 2 || probe.Failures != 1 || probe.Root != cut.ID || probe.ID == cut.ID {
			t.Errorf("the probe is %+v", probe)
		}
		b.Record(storetest.Whole(probe))
		b.WantTally(run, storetest.Tally{Live: left, Done: 3 - left})
	}
	b.probeDue()
	b.Record(storetest.Whole(b.wantProbe(run)))
	b.WantState(run, "completed", 1)
	b.Check()
}

// What became of a probe's item before is found through its parent, which must not be a slice that vanishes when it is
// put together with others.
func TestProbeOutlivesTheSliceItWasCarvedFrom(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 8)
	for _, s := range b.Claim(run, storetest.Plenty) {
		b.Record(again(s, 2))
	}
	b.probeDue()
	probe := b.wantProbe(run)
	b.Exec(`UPDATE endpoint_pace SET breaker = 'closed', probe_at = NULL`)
	if merged := b.Claim(run, storetest.Plenty); len(merged) != 1 || merged[0].Mask.Count() != 3 {
		t.Fatalf("claimed %+v: %s", merged, b.Dump(run))
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM work_slice s JOIN work_slice p ON p.id = s.parent
		AND p.state = 'recorded' WHERE s.id = $1`, probe.ID), 1, "the probe's parents")
	b.Check()
}

// The limits hold for probes too.
func TestProbeKeepsToTheBudget(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.budget(1)
	run := b.Load(storetest.Chunked(10), 100)
	out := b.One(run)
	b.probeDue()
	b.wantClaim(run, 0, dispatch.BoundEndpoint)
	b.Record(storetest.Whole(out))
	b.wantProbe(run)
}
