package workqueue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

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
