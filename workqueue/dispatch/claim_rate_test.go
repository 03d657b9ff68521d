package dispatch_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/internal/storetest"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/start"
)

// rated is chunked with a rate.
func rated(chunk int, rate float64) start.LoadRequest {
	req := storetest.Chunked(chunk)
	req.Steps[0].InFlight, req.Steps[0].Rate = 1000, rate
	return req
}

// later makes buckets as they are when so much time has passed.
func (b *bench) later(d time.Duration) {
	b.Helper()
	b.Exec(`UPDATE run_step SET tokens_at = tokens_at - $1::interval`, d)
	b.Exec(`UPDATE endpoint_pace SET tokens_at = tokens_at - $1::interval`, d)
}

func itemsOf(slices []workqueue.Slice) (n int) {
	for _, s := range slices {
		n += s.Mask.Count()
	}
	return n
}

// Over a time that is told to pass exactly the rate passes, a second's worth at once at the most, and no chunk is
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
		b.later(250 * time.Millisecond)
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
	b.later(time.Hour)
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
	if _, err := pacestore.New(b.Store).ChangeEndpoint(t.Context(), pacestore.EndpointChange{Endpoint: storetest.Endpoint,
		Rate: &rate},
		"ann"); err != nil {
		t.Fatal(err)
	}
	x, y := b.Load(storetest.Chunked(10), 4000), b.Load(storetest.Chunked(10), 4000)
	if claimed := b.ask(x); len(claimed.Slices) != 1 || claimed.Bound != dispatch.BoundEndpoint {
		t.Errorf("at the start %d slices, %q", len(claimed.Slices), claimed.Bound)
	}
	b.later(-time.Hour) // nothing comes in before it has passed
	if n := len(b.Claim(y, storetest.Plenty)); n != 0 {
		t.Errorf("another run got %d slices although the endpoint's rate is spent", n)
	}
	b.later(2 * time.Hour)
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
	if n := itemsOf(b.Claim(fixed, storetest.Plenty)); n != 400 {
		t.Errorf("another got %d items", n)
	}
}

// Claimers of several sessions that ask as often as they can get what the rate says.
func TestRateIsExactOverSessions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const rate, seconds = 400, 4
	run := b.Load(rated(20, rate), 8000)
	b.Exec(`CREATE TABLE filled (at timestamptz)`)
	b.Exec(`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
		$$ BEGIN INSERT INTO filled VALUES (NEW.tokens_at); RETURN NULL; END $$`)
	b.Exec(`CREATE TRIGGER note AFTER UPDATE OF tokens_at ON run_step FOR EACH ROW EXECUTE FUNCTION note()`)
	begun := time.Now()
	b.One(run) // the first chunk goes before the time begins
	ctx, stop := context.WithTimeout(t.Context(), seconds*time.Second)
	defer stop()
	var wg sync.WaitGroup
	for range 4 {
		session := b.Open()
		wg.Go(func() {
			for ctx.Err() == nil {
				req := b.ClaimRequest(run, 32)
				req.Session = session
				claimed, err := dispatch.New(b.Store).Claim(ctx, req)
				if err != nil && !errors.Is(err, workqueue.ErrBusy) && ctx.Err() == nil {
					t.Errorf("claim: %v", err)
				}
				if claimed.Wait > 100*time.Millisecond { // the largest debt is a chunk, of 50 ms
					t.Errorf("told to ask again in %s", claimed.Wait)
				}
				select {
				case <-time.After(claimed.Wait):
				case <-ctx.Done():
				}
			}
		})
	}
	wg.Wait()
	passed := time.Since(begun).Seconds()
	// What would come in while nobody claims, beyond a second's worth, is lost: the machine may have stalled.
	var items, took, lost float64
	err := b.Pool.QueryRow(t.Context(), `
		SELECT (SELECT sum(bit_count(mask)) - 20 FROM work_slice), extract(epoch FROM max(at) - min(at)),
		       coalesce(sum(greatest(extract(epoch FROM gap) - 1, 0)), 0)
		FROM (SELECT at, at - lag(at) OVER (ORDER BY at) AS gap FROM filled) f`).Scan(&items, &took, &lost)
	if err != nil {
		t.Fatal(err)
	}
	// One chunk runs into debt. The first has done so, too, and is paid for first.
	if items > min(took, passed)*rate*1.05+20 || items+20 < (took-lost)*rate*0.99 {
		t.Errorf("%.0f items in %.2f s, of which %.2f s were lost; want %d a second", items, took, lost, rate)
	}
	b.Check()
}
