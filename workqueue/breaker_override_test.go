package workqueue_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/settle"
)

func (b *bench) closeBreaker() {
	b.Helper()
	change := pacestore.EndpointChange{Endpoint: storetest.Endpoint, CloseBreaker: true}
	if _, err := pacestore.New(b.Store).ChangeEndpoint(b.Context(), change, "ann"); err != nil {
		b.Fatal(err)
	}
}

// The last items of a run all fail alone, which looks like an outage. An operator who knows better says so, and then
// they use up their attempts; what is left to do is told where it is asked for.
func TestOperatorClosesTheBreaker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(1), 20)
	d := b.drive(run, down, 3)
	if state, _ := b.Breaker(); state != "open" {
		t.Fatalf("the breaker is %s after %+v", state, d)
	}
	e, err := health.New(b.Store).Explain(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	advised := func(g health.MissingGroup) bool {
		return slices.ContainsFunc(g.Advice, func(a health.Advice) bool {
			return a.Command == "tranche endpoints set "+storetest.Endpoint+" --breaker closed" &&
				strings.Contains(a.Do, "fails for good after 3")
		})
	}
	if !slices.ContainsFunc(e.Groups, advised) {
		t.Errorf("nothing tells of the command: %+v", e.Groups)
	}
	b.closeBreaker()
	d = b.drive(run, down, 20)
	b.WantTally(run, storetest.Tally{Failed: 20})
	if state, _ := b.Breaker(); state != "closed" || d.probes != 0 {
		t.Errorf("the breaker is %s after %+v", state, d)
	}
	if n := b.Number(`SELECT count(*) FROM endpoint_change WHERE what = 'breaker' AND before = 'open' AND after = 'closed'
		AND reason = 'closed by ann'`); n != 1 {
		t.Errorf("%d changes were noted", n)
	}
	entries, err := inspect.New(b.Store).Audit(t.Context(), inspect.AuditFilter{Action: "endpoint_set"})
	if err != nil || len(entries.Entries) != 1 {
		t.Fatalf("%+v, %v", entries, err)
	}
	before, after := string(entries.Entries[0].Before), string(entries.Entries[0].After)
	if !strings.Contains(before, `"breaker": "open"`) || !strings.Contains(after, `"closed"`) ||
		!strings.Contains(after, "trusted_until") {
		t.Errorf("audited from %s to %s", before, after)
	}
	b.Check()
}

// While an operator keeps the breaker closed items whose server is not there lose no attempt, be it that their chunk
// fails or that some of its slots do; what a server answers counts.
func TestNoServerCostsNoAttemptWhileTheBreakerIsForcedClosed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(2), 12)
	b.closeBreaker()
	gone := workqueue.SlotError{Code: "unreachable", Message: "connection refused", Retry: true}
	b.drive(run, func(s workqueue.Slice) settle.Answer {
		first := storetest.Ordinals(s)[0]
		if s.Mask.Count() == 2 && first < 4 {
			a := storetest.Whole(s)
			a.Slots[0].Result, a.Slots[0].Err = nil, &gone
			return a
		}
		a := storetest.Answer(s)
		if a.Failure = &gone; first >= 10 {
			a.Failure = &crash
		}
		return a
	}, 12)
	b.WantTally(run, storetest.Tally{Live: 8, Done: 2, Failed: 2})
	if n := b.Number(`SELECT max(failures) FROM work_slice WHERE run_id = $1 AND state = 'scheduled'`, run); n != 0 {
		t.Errorf("an item lost %d attempts", n)
	}
	b.drive(run, storetest.Whole, 5)
	b.WantTally(run, storetest.Tally{Done: 10, Failed: 2})
	b.Check()
}

// What an operator said holds for ten minutes, also when the breaker was closed.
func TestOperatorsTrustEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(1), 60)
	b.closeBreaker()
	for _, s := range b.Claim(run, 20) {
		b.Look(b.Record(down(s)).Look)
	}
	if state, _ := b.Breaker(); state != "closed" {
		t.Fatal("it opened while it was trusted")
	}
	b.Exec(`UPDATE endpoint_pace SET trusted_until = tranche_now()`)
	for _, s := range b.Claim(run, 20) {
		b.Look(b.Record(down(s)).Look)
	}
	if state, _ := b.Breaker(); state != "open" {
		t.Error("it did not open when the trust was over")
	}
	b.Check()
}
