package workqueue_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// service answers slices, or fails them.
type service func(workqueue.Slice) settle.Answer

var crash = workqueue.SlotError{Code: "crash", Message: "it crashed", Retry: true}

func down(s workqueue.Slice) settle.Answer {
	a := storetest.Answer(s)
	a.Failure = &crash
	return a
}

// refusing asks for everything to be retried.
func refusing(s workqueue.Slice) settle.Answer {
	return storetest.Faulty(s, workqueue.SlotError{Code: "flaky", Message: "later", Retry: true})
}

// poisoned fails every chunk that one of the items is in.
func poisoned(items ...workqueue.Ordinal) service {
	return func(s workqueue.Slice) settle.Answer {
		for _, o := range storetest.Ordinals(s) {
			if slices.Contains(items, o) {
				return down(s)
			}
		}
		return storetest.Whole(s)
	}
}

// hurry makes all times pass that something waits for.
func (b *bench) hurry(run workqueue.RunID) {
	b.Helper()
	b.Exec(`UPDATE work_slice SET not_before = tranche_now() WHERE run_id = $1 AND state = 'scheduled'`, run)
	b.Exec(`UPDATE endpoint_pace SET probe_at = tranche_now() WHERE probe_at IS NOT NULL`)
}

// driven is what it took to bring a run to its end.
type driven struct{ slices, probes, rounds int }

// drive has a service answer what is claimed, and sees to breakers as nodes do, until the run ends or as many
// rounds have passed.
func (b *bench) drive(run workqueue.RunID, serve service, rounds int) (d driven) {
	b.Helper()
	for d.rounds < rounds {
		if state, _ := b.State(run); state == "completed" {
			return d
		}
		d.rounds++
		claimed := b.Claim(run, 64)
		var answers []settle.Answer
		for _, s := range claimed {
			d.slices++
			if s.Cause == workqueue.CauseProbe {
				d.probes++
			}
			answers = append(answers, serve(s))
		}
		for batch := range slices.Chunk(answers, 16) {
			b.Look(b.Record(batch...).Look)
		}
		b.hurry(run)
	}
	return d
}

func TestBreakerOpensProbesAndCloses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 80)
	var look settle.FollowUp
	since := time.Now()
	for i, s := range b.Claim(run, 6) {
		if i < 4 {
			look = b.Record(down(s)).Look
		} else {
			b.Record(down(s), down(s))
		}
		change := b.Look(look)
		if open := i >= 4; change.Open != open || change.Changed != (i == 4) {
			t.Errorf("after %d failures: %+v", i+1, change)
		}
	}
	b.Stretch("endpoint_pace", "probe_at", since, time.Second)
	testenv.Same(t, len(b.Claim(run, storetest.Plenty)), 0, "slices were claimed for an endpoint that is down")
	b.hurry(run)
	for failed := 1; failed <= 2; failed++ {
		probe := b.One(run)
		if probe.Cause != workqueue.CauseProbe || probe.Mask.Count() != 1 {
			t.Fatalf("probe %+v", probe)
		}
		if change := b.Look(settle.FollowUp{Endpoints: []string{storetest.Endpoint}}); change.Changed || change.Probed {
			t.Errorf("while the probe is out: %+v", change)
		}
		since = time.Now()
		change := b.Look(b.Record(down(probe)).Look)
		b.Stretch("endpoint_pace", "probe_at", since, time.Duration(failed)*time.Second) // the pause doubles
		if _, probes := b.Breaker(); !change.Probed || change.Changed || probes != failed {
			t.Errorf("after probe %d failed: %+v, %d probes", failed, change, probes)
		}
		testenv.Same(t, len(b.Claim(run, storetest.Plenty)), 0, "another probe immediately")
		b.hurry(run)
	}
	change := b.Look(b.Record(storetest.Whole(b.One(run))).Look)
	if !change.Changed || change.Open {
		t.Errorf("after an answer: %+v", change)
	}
	b.wantBreaker("closed", "after an answer")
	b.drive(run, storetest.Whole, 20)
	b.WantTally(run, storetest.Tally{Done: 80})
	n := b.Number(`SELECT count(*) FROM endpoint_change WHERE endpoint = $1 AND what = 'breaker' AND reason <> ''`,
		storetest.Endpoint)
	testenv.Same(t, n, 2, "changes were noted")
	b.Check()
}

// failedBefore is a run all of whose items have failed alone and permanently, and are to be redone.
func (b *bench) failedBefore(items, chunk int) workqueue.RunID {
	b.Helper()
	run := b.Load(storetest.Chunked(chunk), items)
	for _, s := range b.Claim(run, storetest.Plenty) {
		b.Record(storetest.Faulty(s, workqueue.SlotError{Code: "refused", Message: "m"}))
	}
	b.WantState(run, "completed", 1)
	b.Exec(`UPDATE work_slice SET ended_at = ended_at - interval '1 hour' WHERE run_id = $1`, run)
	b.Rerun(run, redo.Selection{Failed: true})
	return run
}

// What a service answers about items that failed before is no evidence against it, nor is that they fail again and
// again; that nothing is there to answer is.
func TestItemsThatFailAgainDoNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	unreachable := func(s workqueue.Slice) settle.Answer {
		return storetest.Faulty(s, workqueue.SlotError{Code: "unreachable", Message: "connection refused", Retry: true})
	}
	for name, tc := range map[string]struct {
		items, chunk int
		again        bool // they failed in an earlier generation
		serve        service
		opens        bool
	}{
		"five, alone":                   {items: 5, chunk: 1, again: true, serve: down},
		"five, in a chunk":              {items: 5, chunk: 100, again: true, serve: down},
		"forty, alone":                  {items: 40, chunk: 1, again: true, serve: down},
		"five that are requested again": {items: 5, chunk: 1, again: true, serve: refusing},
		"four new ones, repeatedly":     {items: 4, chunk: 1, serve: down},
		"five, and nothing answers":     {items: 5, chunk: 1, again: true, serve: unreachable, opens: true},
		"five new ones":                 {items: 5, chunk: 1, serve: down, opens: true},
	} {
		subtest(t, name, func(b *bench) {
			good := b.Load(storetest.Chunked(1), 39)
			var run workqueue.RunID
			if tc.again {
				run = b.failedBefore(tc.items, tc.chunk)
			} else {
				run = b.Load(storetest.Chunked(tc.chunk), tc.items)
			}
			d := b.drive(run, tc.serve, 12)
			state, _ := b.Breaker()
			testenv.MustSame(b, state == "open", tc.opens, "the breaker is open after %+v", d)
			if tc.opens {
				return
			}
			b.WantTally(run, storetest.Tally{Failed: tc.items})
			testenv.Same(b, b.Number(`SELECT count(*) FROM endpoint_change WHERE what = 'breaker'`), 0, "changes of the breaker")
			testenv.Same(b, len(b.Claim(good, storetest.Plenty)), 39, "requests of the other run may go")
			b.Check()
		})
	}
}

// Many pieces of several items that failed before and fail again may be an outage: then an item of another run that has
// not failed decides, and among items that failed before the next probe follows within a second.
func TestAGoodItemProbesForThoseThatFailedBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.failedBefore(200, 20)
	for _, s := range b.Claim(run, 5) {
		b.Look(b.Record(down(s)).Look)
	}
	b.wantBreaker("open", "after five failures")
	for failed := range 4 {
		b.hurry(run)
		change := b.Look(b.Record(down(b.One(run))).Look)
		soon := b.Number(`SELECT count(*) FROM endpoint_pace WHERE probe_at <= tranche_now() + interval '1 s'`)
		if !change.Probed || soon != 1 {
			t.Errorf("after probe %d: %+v; the next follows within a second: %d", failed+1, change, soon)
		}
	}
	good := b.Load(storetest.Chunked(20), 100)
	b.hurry(run)
	testenv.Same(t, len(b.Claim(run, 1)), 0, "an item that failed before goes before a good one")
	change := b.Look(b.Record(storetest.Whole(b.One(good))).Look)
	if !change.Changed || change.Open {
		t.Errorf("after the good item was done: %+v", change)
	}
	b.Exec(`UPDATE endpoint_pace SET breaker = 'open', probes = 0, probe_at = tranche_now() - interval '2 s'`)
	if claimed := b.Claim(run, 1); len(claimed) != 1 || claimed[0].Cause != workqueue.CauseProbe {
		t.Errorf("nothing probes while the good run cannot: %+v", claimed)
	}
	b.Check()
}

// Items that a reply left to be retried are not blamed for a failure without an answer, unless they are few of their
// chunk or the service has since worked for others. Items that are never answered do not keep the run from its end.
func TestItemsCutOffByAnOutageAreNotBlamed(t *testing.T) {
	t.Parallel()
	away := func(s workqueue.Slice) settle.Answer {
		return storetest.Faulty(s, workqueue.SlotError{Code: "unavailable", Message: "no database", Retry: true})
	}
	leftOut := func(s workqueue.Slice) settle.Answer { return storetest.Answer(s) }
	for name, tc := range map[string]struct {
		chunk       int // of which 3 items are left
		serve, then service
		others      bool // the service works for another run meanwhile
		opens       bool
		failed      int
	}{
		"an outage":               {chunk: 4, serve: away, then: storetest.Whole, opens: true},
		"never answered":          {chunk: 4, serve: away, then: away, opens: true, failed: 24},
		"few are not":             {chunk: 24, serve: away, failed: 24},
		"others are":              {chunk: 4, serve: away, others: true, failed: 24},
		"answered with a refusal": {chunk: 4, serve: refusing, failed: 24},
		"left out of an answer":   {chunk: 4, serve: leftOut, failed: 24},
	} {
		subtest(t, name, func(b *bench) {
			run := b.Load(storetest.Chunked(tc.chunk), 8*tc.chunk)
			var again []settle.Answer
			for _, s := range b.Claim(run, 8) {
				a, whole := storetest.Answer(s), storetest.Whole(s)
				a.Slots, a.Answered = whole.Slots[3:], tc.chunk-3
				b.Record(a)
				b.hurry(run)
				again = append(again, tc.serve(b.One(run)))
			}
			work := func() {
				if tc.others {
					b.Record(storetest.Whole(b.One(b.Load(storetest.Chunked(4), 4))))
				}
			}
			work()
			b.Look(b.Record(again...).Look)
			b.hurry(run)
			work()
			b.drive(run, tc.serve, 1)
			changes := b.Number(`SELECT count(*) FROM endpoint_change WHERE what = 'breaker'`)
			testenv.MustSame(b, changes == 1, tc.opens, "the breaker opened")
			if tc.opens {
				b.drive(run, tc.then, 200)
			}
			b.WantTally(run, storetest.Tally{Done: 8*tc.chunk - tc.failed, Failed: tc.failed})
			b.Check()
		})
	}
}

// Items that fail by themselves do not keep a run from its end, also when there is no one else to send a probe for.
func TestCulpritsAreFinalWhenNothingElseIsLeft(t *testing.T) {
	t.Parallel()
	for name, good := range map[string]int{"after others": 30, "and nothing ever worked": 0} {
		subtest(t, name, func(b *bench) {
			const bad = 12
			run := b.Load(storetest.Chunked(1), good+bad)
			b.drive(run, func(s workqueue.Slice) settle.Answer {
				if int(storetest.Ordinals(s)[0]) >= good {
					return down(s)
				}
				return storetest.Whole(s)
			}, 300)
			b.WantTally(run, storetest.Tally{Done: good, Failed: bad})
			b.Check()
		})
	}
}

// Chunks that work in pieces only are too big, when there are several of them; the next ones are cut smaller.
func TestTooBigChunksAreCutSmaller(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(400), 8000)
	b.drive(run, func(s workqueue.Slice) settle.Answer {
		if s.Mask.Count() > 150 {
			return down(s)
		}
		return storetest.Whole(s)
	}, 200)
	b.WantTally(run, storetest.Tally{Done: 8000})
	sizes := b.Number(`SELECT chunk_cap FROM endpoint_pace WHERE endpoint = $1 AND chunk_cap_until > tranche_now()`,
		storetest.Endpoint)
	testenv.Same(t, sizes, 100, "the items that chunks are held to")
	testenv.Same(t, b.Number(`SELECT count(*) FROM endpoint_change WHERE what = 'chunk_cap' AND after = '100'`), 1,
		"changes were noted")
	found, err := pacestore.ReadBisections(t.Context(), b.Store.Pool, run, 3)
	if err != nil || found.Kinds[pacestore.KindTooBig] < 3 || found.Culprits != 0 || len(found.Roots) != 3 {
		t.Errorf("%+v, %v", found, err)
	}
	b.Check()
}

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
