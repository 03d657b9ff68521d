package dispatch_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/start"
)

// rated is chunked with a rate.
func rated(chunk int, rate float64) start.LoadRequest {
	req := storetest.Chunked(chunk)
	req.Steps[0].InFlight, req.Steps[0].Rate = 1000, rate
	return req
}

func itemsOf(slices []workqueue.Slice) (n int) {
	for _, s := range slices {
		n += s.Mask.Count()
	}
	return n
}

// Over a time that is told to pass exactly the rate passes, a second's worth together at most, and no chunk is
// larger than half a second's worth.
func TestRateOfAStep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(rated(500, 100), 8000)
	started := time.Now()
	first := b.ask(run)
	if len(first.Slices) != 1 || first.Bound != dispatch.BoundStep || first.Wait <= 0 || first.Wait > time.Second {
		t.Errorf("at the start %d slices, bound %q, wait %s; want one and its debt", len(first.Slices), first.Bound,
			first.Wait)
	}
	total := itemsOf(first.Slices)
	for range 40 {
		testenv.Advance(b, b.Pool, 250*time.Millisecond)
		claimed := b.Claim(run, storetest.Plenty)
		for _, s := range claimed {
			if n := s.Mask.Count(); n > 50 {
				t.Errorf("a chunk of %d items at 100 a second", n)
			}
		}
		total += itemsOf(claimed)
	}
	passed := time.Since(started).Seconds() // that passed as well
	if want := 100 * (10 + passed); float64(total) < 1000-50 || float64(total) > want+51 {
		t.Errorf("%d items in %.2f s at 100 a second", total, 10+passed)
	}
	testenv.Advance(b, b.Pool, time.Hour)
	if n := itemsOf(b.Claim(run, storetest.Plenty)); n < 100 || n > 150 {
		t.Errorf("%d items after an idle hour; want a second's worth", n)
	}
	b.Check()
}

// The operator's rate of an endpoint holds over all runs, and each gets its part of what has come in.
func TestRateOfAnEndpoint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rate := 80.0
	testenv.Must(pacestore.New(b.Store).ChangeEndpoint(t.Context(), pacestore.EndpointChange{
		Endpoint: storetest.Endpoint, Rate: &rate}, "ann"))(t)
	x, y := b.Load(storetest.Chunked(10), 4000), b.Load(storetest.Chunked(10), 4000)
	if claimed := b.ask(x); len(claimed.Slices) != 1 || claimed.Bound != dispatch.BoundEndpoint {
		t.Errorf("at the start %d slices, %q", len(claimed.Slices), claimed.Bound)
	}
	testenv.Advance(b, b.Pool, -time.Hour) // nothing comes in before it has passed
	testenv.Same(t, len(b.Claim(y, storetest.Plenty)), 0, "slices of another run although the endpoint's rate is spent")
	testenv.Advance(b, b.Pool, 2*time.Hour)
	if n := itemsOf(b.Claim(x, storetest.Plenty)); n < 40 || n > 50 {
		t.Errorf("%d items of 80 beside another run; want half of them", n)
	}
	if n := itemsOf(b.Claim(y, storetest.Plenty)); n < 20 || n > 50 {
		t.Errorf("%d items for the other run", n)
	}
	b.Check()
}

// What throttling taught holds for steps that leave it to the nodes.
func TestLearnedRateHoldsForAutomaticSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	auto, fixed := b.Load(automatic(10), 4000), b.Load(storetest.Chunked(10), 400)
	b.Exec(`UPDATE endpoint_pace SET rate = 10`)
	if claimed := b.ask(auto); len(claimed.Slices) != 1 || itemsOf(claimed.Slices) != 5 ||
		claimed.Bound != dispatch.BoundAuto {
		t.Errorf("an automatic step got %d slices of %d items, %q", len(claimed.Slices), itemsOf(claimed.Slices),
			claimed.Bound)
	}
	testenv.Same(t, itemsOf(b.Claim(fixed, storetest.Plenty)), 400, "items of another")
}

// Claimers of several sessions that ask as soon as they are told to get what the rate says.
func TestRateIsExactOverSessions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const rate, chunk, long = 400, 20, 2 * time.Second
	run := b.Load(rated(chunk, rate), 8000)
	sessions := []workqueue.SessionID{b.Session, b.Open(), b.Open(), b.Open()}
	testenv.StopClock(t, b.Pool, time.Now())
	b.One(run) // the first chunk goes before the time begins
	passed := time.Duration(0)
	for passed < long {
		waits := make([]time.Duration, len(sessions))
		var wg sync.WaitGroup
		for i, session := range sessions {
			req := b.ClaimRequest(run, 32)
			req.Session = session
			wg.Go(func() {
				for waits[i] == 0 && !t.Failed() {
					claimed, err := dispatch.New(b.Store).Claim(t.Context(), req)
					if err != nil && !errors.Is(err, workqueue.ErrBusy) {
						t.Errorf("claim: %v", err)
					}
					waits[i] = claimed.Wait
				}
			})
		}
		wg.Wait()
		if slices.Max(waits) > 100*time.Millisecond || t.Failed() { // the largest debt is a chunk, of 50 ms
			t.Fatalf("told to ask again in %v", waits)
		}
		testenv.Advance(t, b.Pool, slices.Max(waits))
		passed += slices.Max(waits)
	}
	items := float64(b.Number(`SELECT sum(bit_count(mask)) FROM work_slice`) - chunk)
	// One chunk runs into debt. The first has done so, too, and is paid for first.
	if want := passed.Seconds() * rate; items > want+chunk || items < want-chunk {
		t.Errorf("%.0f items in %s; want %d a second", items, passed, rate)
	}
	b.Check()
}
