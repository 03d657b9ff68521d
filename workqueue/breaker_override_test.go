package workqueue_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/workqueue/explain"
	"github.com/tranchehq/tranche/workqueue/inspect"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
)

func (b *bench) closeBreaker() {
	b.Helper()
	change := pacestore.EndpointChange{Endpoint: endpoint, CloseBreaker: true}
	if _, err := pacestore.New(b.store).ChangeEndpoint(b.Context(), change, "ann"); err != nil {
		b.Fatal(err)
	}
}

// The last items of a run all fail alone, which looks like an outage. An operator who knows better says so, and then
// they use up their attempts; what is left to do is told where it is asked for.
func TestOperatorClosesTheBreaker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(1), 20)
	d := b.drive(run, down, 3)
	if state, _ := b.breaker(); state != "open" {
		t.Fatalf("the breaker is %s after %+v", state, d)
	}
	e, err := explain.New(b.store).Explain(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	advised := func(g explain.MissingGroup) bool {
		return slices.ContainsFunc(g.Advice, func(a explain.Advice) bool {
			return a.Command == "tranche endpoints set "+endpoint+" --breaker closed"
		})
	}
	if !slices.ContainsFunc(e.Groups, advised) {
		t.Errorf("nothing tells of the command: %+v", e.Groups)
	}
	b.closeBreaker()
	d = b.drive(run, down, 20)
	b.wantTally(run, tally{failed: 20})
	if state, _ := b.breaker(); state != "closed" || d.probes != 0 {
		t.Errorf("the breaker is %s after %+v", state, d)
	}
	if n := b.number(`SELECT count(*) FROM endpoint_change WHERE what = 'breaker' AND before = 'open' AND after = 'closed'
		AND reason = 'closed by ann'`); n != 1 {
		t.Errorf("%d changes were noted", n)
	}
	entries, err := inspect.New(b.store).Audit(t.Context(), inspect.AuditFilter{Action: "endpoint_set"})
	if err != nil || len(entries.Entries) != 1 {
		t.Fatalf("%+v, %v", entries, err)
	}
	before, after := string(entries.Entries[0].Before), string(entries.Entries[0].After)
	if !strings.Contains(before, `"breaker": "open"`) || !strings.Contains(after, `"closed"`) ||
		!strings.Contains(after, "trusted_until") {
		t.Errorf("audited from %s to %s", before, after)
	}
	b.check()
}

// What an operator said holds for ten minutes, also when the breaker was closed.
func TestOperatorsTrustEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(1), 60)
	b.closeBreaker()
	for _, s := range b.claim(run, 20) {
		b.look(b.record(down(s)).Look)
	}
	if state, _ := b.breaker(); state != "closed" {
		t.Fatal("it opened while it was trusted")
	}
	b.exec(`UPDATE endpoint_pace SET trusted_until = clock_timestamp()`)
	for _, s := range b.claim(run, 20) {
		b.look(b.record(down(s)).Look)
	}
	if state, _ := b.breaker(); state != "open" {
		t.Error("it did not open when the trust was over")
	}
	b.check()
}
