package workqueue_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/settle"
)

func (b *bench) closeBreaker() {
	b.Helper()
	change := pacestore.EndpointChange{Endpoint: storetest.Endpoint, Breaker: new("closed")}
	testenv.Must(pacestore.New(b.Store).ChangeEndpoint(b.Context(), change, "ann"))(b)
}

// The last items of a run all fail alone, which looks like an outage. An operator who knows better says so, and then
// they use up their attempts; what is left to do is told where it is asked for.
func TestOperatorClosesTheBreaker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(1), 20)
	d := b.drive(run, down, 3)
	b.wantBreaker("open", "after %+v", d)
	e := testenv.Must(health.New(b.Store).Explain(t.Context(), run))(t)
	advised := func(g health.MissingGroup) bool {
		return slices.ContainsFunc(g.Advice, func(a health.Advice) bool {
			return a.Command == "tranche endpoints set "+storetest.Endpoint+" --breaker closed" &&
				strings.Contains(a.Do, "fails permanently after 3")
		})
	}
	if !slices.ContainsFunc(e.Groups, advised) {
		t.Errorf("nothing reports the command: %+v", e.Groups)
	}
	b.closeBreaker()
	d = b.drive(run, down, 20)
	b.WantTally(run, storetest.Tally{Failed: 20})
	if state, _ := b.Breaker(); state != "closed" || d.probes != 0 {
		t.Errorf("the breaker is %s after %+v", state, d)
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM endpoint_change WHERE what = 'breaker' AND before = 'open'
		AND after = 'closed' AND reason = 'closed by ann'`), 1, "changes noted")
	entries := testenv.Must(inspect.New(b.Store).Audit(t.Context(), inspect.AuditFilter{Action: "endpoint_set"}))(t)
	testenv.MustSame(t, len(entries.Entries), 1, "%+v", entries)
	before, after := string(entries.Entries[0].Before), string(entries.Entries[0].After)
	if !strings.Contains(before, `"breaker": "open"`) || !strings.Contains(after, `"closed"`) ||
		!strings.Contains(after, "breaker_suppressed_until") {
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
	testenv.Same(t, b.Number(`SELECT max(failures) FROM work_slice WHERE run_id = $1 AND state = 'scheduled'`, run), 0,
		"attempts that an item lost")
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
	b.wantBreaker("closed", "while it was trusted")
	b.Exec(`UPDATE endpoint_pace SET breaker_suppressed_until = tranche_now()`)
	for _, s := range b.Claim(run, 20) {
		b.Look(b.Record(down(s)).Look)
	}
	b.wantBreaker("open", "when the trust was over")
	b.Check()
}

// Items that fail in slots of their own are no culprits of a chunk that one of its items fails, whether the service
// wants them to be retried or not.
func TestCulpritsAreWhatFailsChunks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(64), 64)
	bad := map[workqueue.Ordinal]bool{3: false, 17: true, 40: true, 41: false, 63: true} // whether it may be retried
	b.drive(run, func(s workqueue.Slice) settle.Answer {
		a := poisoned(30)(s)
		for i := range a.Slots {
			if retry, ok := bad[a.Slots[i].Ordinal]; ok {
				a.Slots[i].Result, a.Slots[i].Err = nil, &workqueue.SlotError{Code: "no_such_customer", Retry: retry}
			}
		}
		return a
	}, 100)
	b.WantTally(run, storetest.Tally{Done: 58, Failed: 6})
	found, err := pacestore.ReadBisections(t.Context(), b.Store.Pool, run, 3)
	if err != nil || found.Kinds[pacestore.KindBadEntity] != 1 || found.Culprits != 1 || len(found.Roots) != 1 ||
		!slices.Equal(found.Roots[0].Ordinals, []workqueue.Ordinal{30}) || found.Roots[0].Code != crash.Code {
		t.Errorf("%+v, %v", found, err)
	}
	b.Check()
}

var tooMuch = workqueue.SlotError{Code: "too_many_requests", Message: "2,000 items a second", Retry: true}

// throttled refuses the entire chunk, because it is too much.
func throttled(s workqueue.Slice) settle.Answer {
	a := storetest.Answer(s)
	a.Failure = &tooMuch
	return a
}

// What the step says of a code goes before that too.
func TestThrottlingAndThePolicyOfTheStep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(1)
	req.Steps[0].MaxAttempts = 1
	req.Steps[0].NoRetryCodes, req.Steps[0].RetryCodes = []string{"throttled"}, []string{"429"}
	run := b.Load(req, 2)
	claimed := b.Claim(run, storetest.Plenty)
	b.Record(storetest.Faulty(claimed[0], workqueue.SlotError{Code: "throttled", Retry: true}),
		storetest.Faulty(claimed[1], workqueue.SlotError{Code: "429"}))
	b.WantTally(run, storetest.Tally{Failed: 1, Live: 1})
	b.Check()
}

// A service that never has time does not keep a run indefinitely.
func TestThrottlingEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(4)
	req.Steps[0].MaxAttempts = 2
	run := b.Load(req, 4)
	d := b.drive(run, func(s workqueue.Slice) settle.Answer { return storetest.Faulty(s, tooMuch) }, 100)
	b.WantTally(run, storetest.Tally{Failed: 4})
	testenv.Same(t, d.slices, 51, "issues that it took")
	b.wantBreaker("closed", "after its items")
	b.Check()
}

// A service that says it has too much to do is not down: neither do its refusals open the breaker nor keep it open.
func TestThrottlingIsNoOutage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(1), 40)
	for i, s := range b.Claim(run, 20) {
		a := throttled(s)
		if i%2 == 0 {
			a = storetest.Faulty(s, tooMuch)
		}
		b.Look(b.Record(a).Look)
	}
	b.wantBreaker("closed", "after throttling")
	for _, s := range b.Claim(run, 10) {
		b.Look(b.Record(down(s)).Look)
	}
	b.wantBreaker("open", "after an outage")
	b.hurry(run)
	probe := b.One(run)
	if change := b.Look(b.Record(throttled(probe)).Look); change.Open || !change.Changed {
		t.Errorf("a probe was answered with too much to do: %+v", change)
	}
	b.Check()
}

// A half that is refused because it came at a bad time says nothing of what is wrong in its chunk.
func TestThrottledPiecesAreNoFailures(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(8), 8)
	busy := map[int]bool{}
	b.drive(run, func(s workqueue.Slice) settle.Answer {
		if n := s.Mask.Count(); n < 8 && !busy[n] {
			busy[n] = true
			return throttled(s)
		}
		return poisoned(5)(s)
	}, 50)
	b.WantTally(run, storetest.Tally{Done: 7, Failed: 1})
	found, err := pacestore.ReadBisections(t.Context(), b.Store.Pool, run, 3)
	if err != nil || found.Kinds[pacestore.KindBadEntity] != 1 || found.Culprits != 1 ||
		found.Roots[0].Code != crash.Code {
		t.Errorf("%+v, %v", found, err)
	}
	b.Check()
}

// Authors of services go by docs/protocol.md.
func TestProtocolNamesThrottledCodes(t *testing.T) {
	t.Parallel()
	text := testenv.Must(os.ReadFile("../docs/protocol.md"))(t)
	for _, code := range workqueue.ThrottledCodes() {
		if !workqueue.Throttled(code) || !strings.Contains(string(text), "`"+code+"`") {
			t.Errorf("docs/protocol.md does not name %s", code)
		}
	}
	if workqueue.Throttled("") || workqueue.Throttled("deadline") {
		t.Error("other codes count as well")
	}
}
