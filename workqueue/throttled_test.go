package workqueue_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/explain"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/settle"
)

var tooMuch = workqueue.SlotError{Code: "too_many_requests", Message: "2,000 items a second", Retry: true}

// throttled refuses the chunk as a whole, because it is too much.
func throttled(s workqueue.Slice) settle.Answer {
	a := answer(s)
	a.Failure = &tooMuch
	return a
}

// Items that a service refuses because it has too much to do lose no attempt, in slots or as a chunk, which is not
// halved. Errors of other items of the same reply count.
func TestThrottlingCostsNoAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := chunked(8)
	req.Steps[0].MaxAttempts = 1
	run := b.load(req, 8)
	for n := 1; n <= 10; n++ {
		s := b.one(run)
		if s.Attempt != n || s.Failures != 0 || s.Mask.Count() != 8 {
			t.Fatalf("issue %d of the chunk: %+v", n, s)
		}
		since := time.Now()
		if n%2 == 0 {
			b.record(throttled(s))
		} else {
			b.record(faulty(s, tooMuch))
		}
		if n == 4 {
			b.stretch("work_slice", "not_before", since, 800*time.Millisecond)
			b.wantExplained(run, explain.ReasonThrottled)
		}
		b.hurry(run)
	}
	s := b.one(run)
	mixed := whole(s)
	mixed.Slots[0] = settle.Slot{Ordinal: 0, Err: &tooMuch}
	mixed.Slots[1] = settle.Slot{Ordinal: 1, Err: &workqueue.SlotError{Code: "flaky", Retry: true}}
	mixed.Slots[2] = settle.Slot{Ordinal: 2, Err: &workqueue.SlotError{Code: tooMuch.Code}} // for good, it says
	b.record(mixed)
	b.wantTally(run, tally{done: 5, failed: 2, live: 1})
	if n := b.number(`SELECT count(*) FROM work_error WHERE ordinal = 0`); n != 6 {
		t.Errorf("%d failed attempts of an item are noted; want the 6 that named it", n)
	}
	b.hurry(run)
	b.record(whole(b.one(run)))
	b.wantTally(run, tally{done: 6, failed: 2})
	b.wantState(run, "completed", 1)
	b.check()
}

func (b *bench) wantExplained(run workqueue.RunID, want explain.Reason) {
	b.Helper()
	e, err := explain.New(b.store).Explain(b.Context(), run)
	if err != nil {
		b.Fatal(err)
	}
	if len(e.Groups) != 1 || e.Groups[0].Reason != want {
		b.Errorf("explained as %+v; want %s", e.Groups, want)
	}
}

// What the step says of a code goes before that too.
func TestThrottlingAndThePolicyOfTheStep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := chunked(1)
	req.Steps[0].MaxAttempts = 1
	req.Steps[0].NeverRetry, req.Steps[0].RetryCodes = []string{"throttled"}, []string{"429"}
	run := b.load(req, 2)
	claimed := b.claim(run, plenty)
	b.record(faulty(claimed[0], workqueue.SlotError{Code: "throttled", Retry: true}),
		faulty(claimed[1], workqueue.SlotError{Code: "429"}))
	b.wantTally(run, tally{failed: 1, live: 1})
	b.check()
}

// A service that never has time does not keep a run for ever.
func TestThrottlingEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := chunked(4)
	req.Steps[0].MaxAttempts = 2
	run := b.load(req, 4)
	d := b.drive(run, func(s workqueue.Slice) settle.Answer { return faulty(s, tooMuch) }, 100)
	b.wantTally(run, tally{failed: 4})
	if d.slices != 51 {
		t.Errorf("it took %d issues; want 49 that did not count and 2 attempts", d.slices)
	}
	if state, _ := b.breaker(); state != "closed" {
		t.Errorf("the breaker is %s", state)
	}
	b.check()
}

// A service that says it has too much to do is not down: neither do its refusals open the breaker nor keep it open.
func TestThrottlingIsNoOutage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(1), 40)
	for i, s := range b.claim(run, 20) {
		a := throttled(s)
		if i%2 == 0 {
			a = faulty(s, tooMuch)
		}
		b.look(b.record(a).Look)
	}
	if state, _ := b.breaker(); state != "closed" {
		t.Fatal("throttling opened the breaker")
	}
	for _, s := range b.claim(run, 10) {
		b.look(b.record(down(s)).Look)
	}
	if state, _ := b.breaker(); state != "open" {
		t.Fatal("an outage did not open the breaker")
	}
	b.hurry(run)
	probe := b.one(run)
	if change := b.look(b.record(throttled(probe)).Look); change.Open || !change.Changed {
		t.Errorf("a probe was answered with too much to do: %+v", change)
	}
	b.check()
}

// A half that is refused because it came at a bad time says nothing of what is wrong in its chunk.
func TestThrottledPiecesAreNoFailures(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(8), 8)
	busy := map[int]bool{}
	b.drive(run, func(s workqueue.Slice) settle.Answer {
		if n := s.Mask.Count(); n < 8 && !busy[n] {
			busy[n] = true
			return throttled(s)
		}
		return poisoned(5)(s)
	}, 50)
	b.wantTally(run, tally{done: 7, failed: 1})
	found, err := pacestore.ReadBisections(t.Context(), b.store.Pool, run, 3)
	if err != nil || found.Kinds[pacestore.KindBadEntity] != 1 || found.Culprits != 1 ||
		found.Roots[0].Code != crash.Code {
		t.Errorf("%+v, %v", found, err)
	}
	b.check()
}
