package workqueue_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

func TestRecordTakesAReplyInPieces(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]int{
		"in order": {0, 1, 2}, "final first": {2, 0, 1}, "final in the middle": {1, 2, 0}, "backwards": {2, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.Load(storetest.Chunked(6), 6)
			s := b.One(run)
			all := storetest.Ordinals(s)
			pieces := []settle.Answer{storetest.Answer(s, all[:2]...), storetest.Answer(s, all[2:4]...),
				storetest.Answer(s, all[4:]...)}
			pieces[0].Answered, pieces[1].Answered, pieces[2].Answered = -1, -1, 6
			for i, piece := range order {
				b.WantState(run, "running", 1)
				if v := b.Record(pieces[piece]).Verdicts[0]; v.Taken != 2 || v.Stale {
					t.Fatalf("piece %d: %+v; want 2 taken", i, v)
				}
				b.Check()
			}
			b.WantState(run, "completed", 1)
			b.WantTally(run, storetest.Tally{Done: 6})
			b.WantCompletions(run, 1)
			if again := b.Record(pieces...); !again.Verdicts[0].Stale || !again.Verdicts[2].Stale {
				t.Errorf("a closed slice took a reply: %+v", again.Verdicts)
			}
			b.Check()
		})
	}
}

func TestRecordLeavesASupersededAttemptAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 4)
	late := b.One(run)
	b.Send(late)
	b.Pass(late.ID)
	if n, err := settle.New(b.Store).Expire(t.Context(), b.Lead(), []workqueue.SliceID{late.ID}); err != nil || n != 1 {
		t.Fatalf("expired %d slices, %v; want 1", n, err)
	}
	if v := b.Record(storetest.Whole(late)).Verdicts[0]; !v.Stale || v.Taken != 0 {
		t.Errorf("a reply after the deadline: %+v; want it stale", v)
	}
	b.WantTally(run, storetest.Tally{Live: 4})
	next := b.One(run)
	if next.ID == late.ID || next.Attempt != 2 || next.Failures != 1 || next.Cause != workqueue.CauseDeadline {
		t.Errorf("the next attempt is %+v", next)
	}
	recorded := b.Record(storetest.Whole(late), storetest.Whole(next), storetest.Whole(late))
	if v := recorded.Verdicts; !v[0].Stale || v[1].Taken != 4 || !v[2].Stale {
		t.Errorf("verdicts %+v; want only the second taken", v)
	}
	b.WantTally(run, storetest.Tally{Done: 4})
	b.Check()
}

func TestRecordRefusesWhatWasNotAskedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, other := b.Load(storetest.Request(), 8), b.Load(storetest.Request(), 8)
	slices := b.Claim(run, storetest.Plenty)
	first, second := slices[0], slices[1]
	foreign := storetest.Answer(first, storetest.Ordinals(second)...)
	foreign.Slots = append(foreign.Slots, settle.Slot{Ordinal: -1},
		settle.Slot{Ordinal: 8192 + storetest.Ordinals(first)[0]},
		settle.Slot{Ordinal: 1 << 30})
	if v := b.Record(foreign).Verdicts[0]; v.Taken != 0 || len(v.Foreign) != 7 {
		t.Errorf("foreign ordinals: %+v; want 7 of them refused", v)
	}
	elsewhere := storetest.Whole(second)
	elsewhere.Endpoint = "invoice"
	if v := b.Record(elsewhere).Verdicts[0]; v.Taken != 0 || v.Endpoint != storetest.Endpoint {
		t.Errorf("another endpoint's reply: %+v; want it refused", v)
	}
	unknown := storetest.Whole(second)
	unknown.Slice = workqueue.NewSliceID()
	if v := b.Record(unknown).Verdicts[0]; !v.Stale {
		t.Errorf("an unknown slice: %+v; want it stale", v)
	}
	b.WantTally(other, storetest.Tally{Ready: 8})
	b.Check()
	b.Record(storetest.Whole(second))
	b.WantTally(run, storetest.Tally{Live: 4, Done: 4})
	b.Check()
}

func TestRecordTakesTheFirstOfDoubledSlots(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 4)
	s := b.One(run)
	a := storetest.Whole(s)
	a.Slots = append(a.Slots, a.Slots...)
	for i := range 4 {
		a.Slots[4+i].Result, a.Slots[4+i].Err = nil, &workqueue.SlotError{Code: "late", Message: "second"}
	}
	if v := b.Record(a).Verdicts[0]; v.Taken != 4 || v.Duplicates != 4 {
		t.Errorf("%+v; want 4 taken and 4 duplicates", v)
	}
	b.WantTally(run, storetest.Tally{Done: 4})
	b.Check()
}

// A retry slot counts as the item's answer of this attempt, whatever a second slot says.
func TestRecordTakesARetryOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 4)
	a := storetest.Faulty(b.One(run), workqueue.SlotError{Code: "flaky", Message: "again", Retry: true})
	b.Record(a, a)
	b.WantTally(run, storetest.Tally{Live: 4})
	if n := b.Number(`SELECT count(*) FROM work_error`); n != 4 {
		t.Errorf("%d failed attempts are noted; want 4", n)
	}
	b.Check()
}

// Items that the final message leaves out are unknown: they are tried again, and never taken for done.
func TestRecordTriesUnansweredItemsAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 4)
	for attempt := 1; attempt <= 3; attempt++ {
		s := b.One(run)
		if want := 4 - (attempt - 1); attempt == 1 && s.Mask.Count() != want || attempt > 1 && s.Mask.Count() != 3 {
			t.Fatalf("attempt %d is about %d items", attempt, s.Mask.Count())
		}
		if attempt == 1 {
			b.Record(storetest.Answer(s, storetest.Ordinals(s)[0]))
		} else {
			b.Record(storetest.Answer(s))
		}
		b.Check()
	}
	b.WantTally(run, storetest.Tally{Done: 1, Failed: 3})
	b.WantState(run, "completed", 1)
	if n := b.Number(`SELECT count(*) FROM work_part WHERE error_code = 'unanswered'`); n != 3 {
		t.Errorf("%d items failed as unanswered; want 3", n)
	}
}

func TestRecordTriesRetryableSlotsUpToTheCap(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 4)
	attempts := 0
	for {
		claimed := b.Claim(run, storetest.Plenty)
		if len(claimed) == 0 {
			break
		}
		attempts++
		for _, s := range claimed {
			b.Record(storetest.Faulty(s, workqueue.SlotError{Code: "flaky", Message: "again", Retry: true}))
		}
		b.Check()
	}
	if attempts != 3 {
		t.Errorf("%d attempts; want 3", attempts)
	}
	b.WantTally(run, storetest.Tally{Failed: 4})
	b.WantState(run, "completed", 1)
	if n := b.Number(`SELECT count(*) FROM work_error WHERE run_id = $1`, run); n != 8 {
		t.Errorf("%d failed attempts are noted; want 2 for each item", n)
	}
}

// A chunk that fails as a whole is halved until the culprit stands alone.
func TestRecordIsolatesAPoisonItem(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		retry bool
		most  int // slices: attempts and 2·⌈log2 500⌉
	}{"worth a retry": {true, 3 + 2*9}, "not worth a retry": {false, 1 + 2*9}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.Load(storetest.Chunked(500), 500)
			poison := workqueue.Ordinal(333)
			count := 0
			for {
				claimed := b.Claim(run, storetest.Plenty)
				if len(claimed) == 0 {
					break
				}
				for _, s := range claimed {
					count++
					a := storetest.Whole(s)
					if slices.Contains(storetest.Ordinals(s), poison) {
						a = storetest.Answer(s)
						a.Failure = &workqueue.SlotError{Code: "crash", Message: "poison", Retry: tc.retry}
					}
					b.Record(a)
				}
			}
			if count > tc.most {
				t.Errorf("%d slices; want at most %d", count, tc.most)
			}
			b.WantTally(run, storetest.Tally{Done: 499, Failed: 1})
			b.WantState(run, "completed", 1)
			if n := b.Number(`SELECT ordinal FROM work_part WHERE error_code = 'crash'`); n != int(poison) {
				t.Errorf("item %d failed; want %d", n, poison)
			}
			b.Check()
		})
	}
}

// A failure speaks for the items without a slot, also when the message that brings it comes before the others.
func TestRecordFailureSpeaksForTheRest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 4)
	s := b.One(run)
	last := storetest.Answer(s)
	last.Answered, last.Failure = 2, &workqueue.SlotError{Code: "crash", Message: "half way"}
	b.Record(last)
	b.WantTally(run, storetest.Tally{Live: 4})
	first := storetest.Answer(s, storetest.Ordinals(s)[:2]...)
	first.Answered = -1
	b.Record(first)
	b.WantTally(run, storetest.Tally{Live: 2, Done: 2})
	b.Check()
	if next := b.Claim(run, storetest.Plenty); len(next) != 2 {
		t.Errorf("%d slices follow; want a half for each of the two items: %s", len(next), b.Dump(run))
	}
}

func TestRecordStoresAnyText(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 4)
	s := b.One(run)
	a := storetest.Faulty(s, workqueue.SlotError{Code: "c\x00d", Message: "nul \x00, not UTF-8 \xff\xfe, \u202e bidi"})
	a.Service = "svc\x00\xff"
	a.Slots[0].Err.Retry = false
	a.Slots[1] = settle.Slot{Ordinal: a.Slots[1].Ordinal, Result: []byte{0, 0xff, 0}, ContentType: "application/pdf"}
	a.Slots[2].Err = &workqueue.SlotError{Code: "busy", Message: strings.Repeat("\x00\xc3", 1000), Retry: true}
	if v := b.Record(a).Verdicts[0]; v.Taken != 4 {
		t.Fatalf("%+v; want all 4 taken", v)
	}
	b.WantTally(run, storetest.Tally{Live: 1, Done: 1, Failed: 2})
	var message string
	err := b.Pool.QueryRow(t.Context(), `SELECT error_message FROM work_part WHERE error_code IS NOT NULL LIMIT 1`).
		Scan(&message)
	if err != nil || !strings.Contains(message, "bidi") || strings.Contains(message, "\x00") {
		t.Errorf("stored %q, %v", message, err)
	}
	b.Check()
}

func TestRecordOfManyRunsCompletesEachOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var answers []settle.Answer
	runs := map[workqueue.RunID]bool{}
	for range 10 {
		run := b.Load(storetest.Request(), 8)
		runs[run] = true
		for _, s := range b.Claim(run, storetest.Plenty) {
			answers = append(answers, storetest.Whole(s))
		}
	}
	recorded := b.Record(append(answers, answers...)...)
	for _, c := range recorded.Completed {
		if !runs[c.Run] || c.Done != 8 || c.Failed != 0 || c.Generation != 1 {
			t.Errorf("completion %+v", c)
		}
		delete(runs, c.Run)
	}
	if len(runs) > 0 {
		t.Errorf("%d runs did not complete", len(runs))
	}
	b.Check()
}

// Whoever records is told in how long there is something to claim again, and only then.
func TestRecordTellsWhenSlicesComeDue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(4)
	req.Steps[0].RetryBackoff = 10 * time.Second
	run := b.Load(req, 12)
	claimed := b.Claim(run, storetest.Plenty)
	again := storetest.Faulty(claimed[0], workqueue.SlotError{Code: "flaky", Retry: true})
	for name, tc := range map[string]struct {
		answer settle.Answer
		want   int
	}{"tried again": {again, 1}, "done": {storetest.Whole(claimed[1]), 0}} {
		due := b.Record(tc.answer).Due
		if len(due) != tc.want || tc.want > 0 && (due[0] > 10*time.Second || due[0] < 8*time.Second) {
			t.Errorf("%s: due in %v", name, due)
		}
	}
	broken := storetest.Answer(claimed[2])
	broken.Failure = &workqueue.SlotError{Code: "bad"} // halved at once
	if due := b.Record(broken).Due; len(due) != 0 {
		t.Errorf("halves are due in %v; want at once", due)
	}
}
