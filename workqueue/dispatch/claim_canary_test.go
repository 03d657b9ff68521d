package dispatch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
)

const canary = "new-version"

func (b *bench) canary(share float64) {
	b.Helper()
	change := pacestore.EndpointChange{Endpoint: storetest.Endpoint,
		Canary: &pacestore.Canary{Endpoint: canary, Share: share}}
	testenv.Must(pacestore.New(b.Store).ChangeEndpoint(b.Context(), change, "ann"))(b)
}

// diverted claims, and returns the slices for the canary and the others.
func (b *bench) diverted(run workqueue.RunID, most int) (to, others []workqueue.Slice) {
	b.Helper()
	for _, s := range b.Claim(run, most) {
		if s.Endpoint == canary {
			to = append(to, s)
		} else {
			others = append(others, s)
		}
	}
	return to, others
}

// The share is kept, whichever node claims, and every item is sent once.
func TestCanaryGetsItsShare(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 2000)
	b.canary(20)
	for range 5 { // of 100 requests each
		b.Session = b.Open()
		b.Record(storetest.Wholes(b.Claim(run, storetest.Plenty))...)
	}
	n := b.Number(`SELECT count(*) FROM work_slice WHERE endpoint = $1`, canary)
	if n < 55 || n > 145 {
		t.Errorf("%d of 500 requests went to the canary; want about 100", n)
	}
	b.WantState(run, "completed", 1)
	b.Check()
}

// Its limits hold, half of the step's requests stay away from it, and retries go to the present version.
func TestCanaryIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(4)
	req.Steps[0].InFlight = 10
	run := b.Load(req, 400)
	answer := func(all ...workqueue.Slice) { b.Record(storetest.Wholes(all)...) }
	claim := func(what string, n, of int) (to []workqueue.Slice) {
		t.Helper()
		to, others := b.diverted(run, storetest.Plenty)
		if len(to) != n || len(to)+len(others) != of {
			t.Fatalf("%s: %d of %d slices went to the canary; want %d of %d", what, len(to), len(to)+len(others), n, of)
		}
		answer(others...)
		return to
	}
	b.canary(99.9999)
	hung := claim("half of what is in flight", 5, 10)
	budget := func(endpoint string, n int) {
		change := pacestore.EndpointChange{Endpoint: endpoint, MaxInFlight: &n}
		testenv.Must(pacestore.New(b.Store).ChangeEndpoint(t.Context(), change, "ann"))(t)
	}
	budget(storetest.Endpoint, 5)
	testenv.Same(t, len(b.runnable()), 0, "steps with work when the canary has used the budget of both up")
	budget(storetest.Endpoint, 7)
	claim("the budget of both", 0, 2)
	budget(storetest.Endpoint, 0)
	b.Record(storetest.Faulty(hung[0], workqueue.SlotError{Code: "flaky", Message: "again", Retry: true}))
	retried := b.One(run)
	testenv.Same(t, retried.Endpoint, storetest.Endpoint, "where the retry goes")
	answer(append(hung[1:], retried)...)
	budget(canary, 2)
	answer(claim("its budget", 2, 10)...)
	testenv.NoError(t, pacestore.New(b.Store).SaveListening(t.Context(), []string{storetest.Endpoint}))
	answer(claim("no service listened when it was set", 2, 10)...)
	testenv.Advance(t, b.Pool, 4*time.Second)
	testenv.NoError(t, pacestore.New(b.Store).SaveListening(t.Context(), []string{storetest.Endpoint}))
	claim("no service listens", 0, 10)
	testenv.NoError(t, pacestore.New(b.Store).SaveListening(t.Context(), []string{canary}))
	b.Exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = tranche_now(), probe_at = tranche_now()
		WHERE endpoint = $1`, canary)
	probe := claim("its breaker is open", 1, 10)
	if probe[0].Mask.Count() != 1 || probe[0].Cause != workqueue.CauseProbe {
		t.Errorf("the probe is %+v", probe[0])
	}
	claim("a probe is in flight", 0, 9)
	answer(probe...)
	b.canary(0)
	claim("pulled back", 0, 10)
	b.Finish(run)
	b.WantState(run, "completed", 1)
	b.Check()
}

// At 100% everything goes there, within its own limits only, retries too, and its pace is what nodes adapt.
func TestCanaryGetsAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(automatic(4), 400)
	b.Exec(`UPDATE endpoint_pace SET in_flight = 30, breaker = 'open', breaker_since = tranche_now(),
		probe_at = tranche_now()`)
	b.canary(100)
	claimed := b.wantClaim(run, 30, dispatch.BoundAuto)
	b.Record(storetest.Faulty(claimed[0], workqueue.SlotError{Code: "flaky", Message: "again", Retry: true}))
	for _, s := range append(claimed[1:], b.One(run)) {
		testenv.MustSame(t, s.Endpoint, canary, "the endpoint of a slice")
		b.Record(storetest.Whole(s))
	}
	seen := testenv.Must(pacestore.New(b.Store).Observe(t.Context(), time.Unix(1, 0), nil))(t)
	if len(seen.Endpoints) != 1 || seen.Endpoints[0].Endpoint != canary || !seen.Endpoints[0].Demand {
		t.Errorf("nodes observe %+v", seen.Endpoints)
	}
	b.Finish(run)
	testenv.Same(t, b.Number(`SELECT count(*) FROM work_slice WHERE endpoint <> $1`, canary), 0, "requests elsewhere")
	b.WantState(run, "completed", 1)
	b.Check()
}

// Runs that name the canary share it with those whose requests all go there; what is called directly stays.
func TestCanaryIsShared(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := automatic(4)
	run := b.Load(req, 400)
	req.Steps[0].Endpoint = canary
	named := b.Load(req, 60)
	b.Exec(`UPDATE endpoint_pace SET in_flight = 30`)
	b.canary(100)
	b.wantClaim(named, 15, dispatch.BoundShare)
	b.wantClaim(run, 15, dispatch.BoundAuto)
	observe := func() []pacestore.PacedEndpoint {
		return testenv.Must(pacestore.New(b.Store).Observe(t.Context(), time.Unix(1, 0), nil))(t).Endpoints
	}
	if seen := observe(); len(seen) != 1 || !seen[0].Demand {
		t.Errorf("nodes observe %+v", seen)
	}
	b.Exec(`UPDATE run_step SET kind = 'direct' WHERE run_id = $1`, run)
	if seen := observe(); len(seen) != 2 || seen[1].Endpoint != storetest.Endpoint {
		t.Errorf("nodes observe %+v", seen)
	}
}

// A step whose slices are at the canary is found once, also if others name the canary, and not when it is at its limit.
func TestCanaryLetsWorkBeFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(4)
	req.Steps[0].InFlight = 2
	b.One(b.Load(req, 4)) // stays at the old version
	run := b.Load(req, 40)
	req.Steps[0].Endpoint = canary
	named := b.Load(req, 40)
	for _, share := range []float64{99.9999, 100} {
		b.canary(share)
		one := b.One(run)
		testenv.Same(t, one.Endpoint, canary, "where it goes")
		if share == 100 { // what the old version does no longer matters
			b.Exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = tranche_now(),
				probe_at = tranche_now() + interval '1 h' WHERE endpoint = $1`, storetest.Endpoint)
			b.Exec(`UPDATE endpoint_setting SET max_in_flight = 1 WHERE endpoint = $1`, storetest.Endpoint)
		}
		var found []workqueue.RunID
		for _, step := range b.runnable() {
			found = append(found, step.Run)
		}
		testenv.Same(t, fmt.Sprint(found), fmt.Sprint([]workqueue.RunID{named, run}), "steps with work, at %v%%", share)
		two := b.One(run)
		testenv.Same(t, len(b.runnable()), 1, "steps with work when one is at its limit, at %v%%", share)
		b.Record(storetest.Whole(one), storetest.Whole(two))
	}
	b.Check()
}
