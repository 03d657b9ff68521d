package workqueue_test

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// letter is a request of one item that died.
func letter(id, endpoint string) deadletter.DeadLetter {
	return deadletter.DeadLetter{MsgID: id, Endpoint: endpoint, Cause: "panic", Message: "it panicked", Mode: "single",
		Service: "test@1 a", Deliveries: 3, Items: 1, Headers: map[string][]string{"Tranche-Mode": {"single"}},
		Body: []byte(`{"items":[{"i":0}]}`)}
}

// bury stores letters and returns their ids in the order given.
func (b *bench) bury(letters ...deadletter.DeadLetter) []workqueue.LetterID {
	b.Helper()
	var ids []workqueue.LetterID
	for _, l := range letters {
		if isNew, err := deadletter.New(b.Store).Bury(b.Context(), l); err != nil || !isNew {
			b.Fatalf("bury %s: new %v, %v", l.MsgID, isNew, err)
		}
		ids = append(ids, b.newest().ID)
	}
	return ids
}

func (b *bench) newest() deadletter.DeadLetter {
	b.Helper()
	page, err := deadletter.New(b.Store).DeadLetters(b.Context(), deadletter.DeadFilter{Limit: 1})
	if err != nil || len(page.Letters) != 1 {
		b.Fatalf("the newest of %d letters: %v", len(page.Letters), err)
	}
	return page.Letters[0]
}

func TestBuryOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, slice := workqueue.NewRunID(), workqueue.NewSliceID()
	first := letter("m", "accounts")
	first.Run, first.Slice, first.Root, first.Stack, first.Origin = &run, &slice, &slice, "statement:1", "somebody"
	id := b.bury(first)[0]
	second := letter("m", "elsewhere")
	if isNew, err := deadletter.New(b.Store).Bury(t.Context(), second); err != nil || isNew {
		t.Errorf("the second time: new %v, %v", isNew, err)
	}
	for _, ref := range []string{id.String(), id.String()[:20], strings.ToUpper(id.String()),
		strings.ReplaceAll(id.String(), "-", "")} {
		got, err := deadletter.New(b.Store).DeadLetter(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != id || got.Endpoint != "accounts" || *got.Run != run || *got.Slice != slice || *got.Root != slice ||
			got.Stack != "statement:1" || got.Origin != "somebody" || got.State != deadletter.LetterWaiting ||
			got.Deliveries != 3 || got.Headers["Tranche-Mode"][0] != "single" || !bytes.Equal(got.Body, first.Body) ||
			got.Size != len(first.Body) || got.At.IsZero() {
			t.Errorf("%s: %+v", ref, got)
		}
	}
	if b.newest().Body != nil {
		t.Error("a list carries bodies")
	}
	for _, ref := range []string{"", "abc", "nope", "ffffffff", "a\x00b", "\xff"} {
		if _, err := deadletter.New(b.Store).DeadLetter(t.Context(), ref); !errors.Is(err, workqueue.ErrNotFound) {
			t.Errorf("%q: got %v; want ErrNotFound", ref, err)
		}
	}
	b.bury(letter("n", "accounts"))
	_, err := deadletter.New(b.Store).DeadLetter(t.Context(), id.String()[:4])
	if ambiguous, ok := errors.AsType[*deadletter.AmbiguousLetterError](err); !ok || len(ambiguous.Matches) != 2 {
		t.Errorf("got %v; want an AmbiguousLetterError", err)
	}
}

// What a service sends may be anything.
func TestBuryWhatPostgreSQLCannotHold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, l := range map[string]deadletter.DeadLetter{
		"texts":   {MsgID: "a\x00\xff", Endpoint: "e\x00", Cause: "\xff", Message: "\x00", Mode: "\x00", Service: "\xff"},
		"headers": {MsgID: "h", Endpoint: "e", Headers: map[string][]string{"a\x00": {"\xff", "\x00"}}},
		"numbers": {MsgID: "n", Endpoint: "e", Deliveries: -1, Requeued: -1, Items: -1},
		"long id": {MsgID: strings.Repeat("x", 100_000), Endpoint: "e"},
		"large":   {MsgID: "l", Endpoint: "e", Body: make([]byte, deadletter.MaxLetterBody+1)},
		"unnamed": {MsgID: "u", Body: []byte("{}")},
		"empty":   {MsgID: "e", Endpoint: "e"},
	} {
		if isNew, err := deadletter.New(b.Store).Bury(t.Context(), l); err != nil || !isNew {
			t.Errorf("%s: new %v, %v", name, isNew, err)
		}
		if isNew, err := deadletter.New(b.Store).Bury(t.Context(), l); err != nil || isNew {
			t.Errorf("%s, again: new %v, %v", name, isNew, err)
		}
	}
	if _, err := deadletter.New(b.Store).Bury(t.Context(), deadletter.DeadLetter{}); err == nil {
		t.Error("a letter without a message id was buried")
	}
	out, err := deadletter.New(b.Store).Requeue(t.Context(), deadletter.DeadSelection{All: true}, "test")
	if err != nil || out.Requeued != 5 || out.RefusedTotal != 2 ||
		!strings.Contains(out.Refused[0].Reason, "was not kept") {
		t.Errorf("requeued %+v, %v; want all but the two that cannot be sent", out, err)
	}
}

func TestDeadLettersInPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var all []workqueue.LetterID
	for i := range 25 {
		all = append(all, b.bury(letter(strconv.Itoa(i), "e"+strconv.Itoa(i%2)))...)
	}
	slices.Reverse(all)
	if _, err := deadletter.New(b.Store).Drop(t.Context(), deadletter.DeadSelection{Refs: []string{all[2].String()}},
		"test"); err != nil {
		t.Fatal(err)
	}
	read := func(f deadletter.DeadFilter) (ids []workqueue.LetterID) {
		for {
			page, err := deadletter.New(b.Store).DeadLetters(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range page.Letters {
				ids = append(ids, l.ID)
			}
			if page.Next == nil {
				return ids
			}
			f.After = *page.Next
		}
	}
	if got := read(deadletter.DeadFilter{Limit: 4}); !slices.Equal(got, all) {
		t.Errorf("%d letters of %d, or not the newest first", len(got), len(all))
	}
	if got := read(deadletter.DeadFilter{Limit: 5, Endpoint: "e1"}); len(got) != 12 || got[0] != all[1] {
		t.Errorf("%d letters of an endpoint; want 12", len(got))
	}
	f := deadletter.DeadFilter{Limit: 5, Endpoint: "e0", State: deadletter.LetterWaiting}
	if got := read(f); len(got) != 12 || slices.Contains(got, all[2]) {
		t.Errorf("%d letters wait; want 12", len(got))
	}
	if got := read(deadletter.DeadFilter{Endpoint: "a\x00"}); len(got) != 0 {
		t.Errorf("%d letters of an endpoint that cannot be", len(got))
	}
}

func TestRunCountsItsLetters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 1)
	var letters []deadletter.DeadLetter
	for i := range 5 {
		l := letter("of it "+strconv.Itoa(i), "accounts")
		l.Run = &run
		if i < 2 {
			l.State = deadletter.LetterReissued
		}
		letters = append(letters, l)
	}
	ids := b.bury(append(letters, letter("of another", "accounts"))...)
	refs := []string{ids[4].String()}
	if _, err := deadletter.New(b.Store).Drop(t.Context(), deadletter.DeadSelection{Refs: refs}, "ann"); err != nil {
		t.Fatal(err)
	}
	view, err := inspect.New(b.Store).Run(t.Context(), run)
	if err != nil || view.DeadLetters != 2 || view.GivenUp != 2 {
		t.Errorf("%d letters wait and %d requests were given up, %v; want 2 and 2", view.DeadLetters, view.GivenUp, err)
	}
}

func TestQuarantineView(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 1)
	for i := range 7 {
		q := deadletter.Quarantined{Reason: "json", Detail: strconv.Itoa(i), Subject: "s", Body: []byte("body"),
			Headers: map[string][]string{"A": {"b"}}}
		if i%2 == 0 {
			q.Run, q.Slice = uuid.UUID(run), uuid.New()
		}
		if err := deadletter.New(b.Store).Quarantine(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	var details string
	f := deadletter.QuarantineFilter{Run: run, Limit: 3}
	var last deadletter.QuarantinedView
	for {
		page, err := deadletter.New(b.Store).QuarantinedMessages(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range page.Messages {
			details, last = details+m.Detail, m
		}
		if f.After = page.Next; page.Next == 0 {
			break
		}
	}
	if details != "6420" || last.Body != nil || last.Size != 4 || *last.Run != run || last.Slice == nil {
		t.Errorf("messages %s, the last is %+v; want 6420 without bodies", details, last)
	}
	page, err := deadletter.New(b.Store).QuarantinedMessages(t.Context(), deadletter.QuarantineFilter{})
	if err != nil || len(page.Messages) != 7 || page.Messages[1].Run != nil {
		t.Errorf("%d messages of all runs, %v", len(page.Messages), err)
	}
	one, err := deadletter.New(b.Store).QuarantinedMessage(t.Context(), last.ID)
	if err != nil || string(one.Body) != "body" || one.Headers["A"][0] != "b" || one.Reason != "json" {
		t.Errorf("one message: %+v, %v", one, err)
	}
	if _, err := deadletter.New(b.Store).QuarantinedMessage(t.Context(), 1<<40); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("got %v; want ErrNotFound", err)
	}
	if view, err := inspect.New(b.Store).Run(t.Context(), run); err != nil || view.Quarantined != 4 {
		t.Errorf("the run has %d quarantined messages, %v; want 4", view.Quarantined, err)
	}
}

func TestQuarantineOfAnEmptyMessage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if err := deadletter.New(b.Store).Quarantine(t.Context(),
		deadletter.Quarantined{Reason: "json", Subject: "s"}); err != nil {
		t.Fatal(err)
	}
	page, err := deadletter.New(b.Store).QuarantinedMessages(t.Context(), deadletter.QuarantineFilter{})
	if err != nil || len(page.Messages) != 1 || page.Messages[0].Size != 0 {
		t.Errorf("%+v, %v; want one message of no bytes", page.Messages, err)
	}
}
