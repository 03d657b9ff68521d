package workqueue_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
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
				b.Logf("%+v", b.drive(run, tc.then, 200))
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
			d := b.drive(run, func(s workqueue.Slice) settle.Answer {
				if int(storetest.Ordinals(s)[0]) >= good {
					return down(s)
				}
				return storetest.Whole(s)
			}, 300)
			b.WantTally(run, storetest.Tally{Done: good, Failed: bad})
			b.Logf("%+v", d)
			b.Check()
		})
	}
}

// Chunks that work in pieces only are too big, when there are several of them; the next ones are cut smaller.
func TestTooBigChunksAreCutSmaller(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(400), 8000)
	d := b.drive(run, func(s workqueue.Slice) settle.Answer {
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
	t.Logf("%+v %+v", d, found.Kinds)
	b.Check()
}
