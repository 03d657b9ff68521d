package workqueue_test

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
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
		if isNew, err := deadletter.New(b.Store).Add(b.Context(), l); err != nil || !isNew {
			b.Fatalf("bury %s: new %v, %v", l.MsgID, isNew, err)
		}
		ids = append(ids, b.newest().ID)
	}
	return ids
}

func (b *bench) newest() deadletter.DeadLetter {
	b.Helper()
	page := testenv.Must(deadletter.New(b.Store).DeadLetters(b.Context(), deadletter.DeadFilter{Limit: 1}))(b)
	testenv.MustSame(b, len(page.Letters), 1, "the newest letters")
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
	if isNew, err := deadletter.New(b.Store).Add(t.Context(), second); err != nil || isNew {
		t.Errorf("the second time: new %v, %v", isNew, err)
	}
	for _, ref := range []string{id.String(), id.String()[:20], strings.ToUpper(id.String()),
		strings.ReplaceAll(id.String(), "-", "")} {
		got, err := deadletter.New(b.Store).DeadLetter(t.Context(), ref)
		if err != nil || got.ID != id || got.Endpoint != "accounts" || *got.Run != run || *got.Slice != slice ||
			got.Origin != "somebody" || !bytes.Equal(got.Body, first.Body) {
			t.Errorf("%s: %+v, %v", ref, got, err)
		}
	}
	for _, ref := range []string{"", "abc", "nope", "ffffffff", "a\x00b", "\xff"} {
		_, err := deadletter.New(b.Store).DeadLetter(t.Context(), ref)
		testenv.Is(t, err, workqueue.ErrNotFound, "%q", ref)
	}
	b.bury(letter("n", "accounts"))
	_, err := deadletter.New(b.Store).DeadLetter(t.Context(), id.String()[:4])
	testenv.Says(t, testenv.As[*workqueue.ConflictError](t, err, "half an id"), "more than one", "half an id")
}

// What a service sends may be anything.
func TestBuryWhatPostgreSQLCannotHold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, l := range map[string]deadletter.DeadLetter{
		"texts":   {MsgID: "a\x00\xff", Endpoint: "e\x00", Cause: "\xff", Message: "\x00", Mode: "\x00", Service: "\xff"},
		"headers": {MsgID: "h", Endpoint: "e", Headers: map[string][]string{"a\x00": {"\xff", "\x00"}}},
		"numbers": {MsgID: "n", Endpoint: "e", Deliveries: -1, Requeued: -1, Items: -1},
		"most":    {MsgID: "m", Endpoint: "e", Deliveries: math.MaxInt, Requeued: math.MaxInt, Items: math.MaxInt},
		"long id": {MsgID: strings.Repeat("x", 100_000), Endpoint: "e"},
		"large":   {MsgID: "l", Endpoint: "e", Body: make([]byte, deadletter.MaxLetterBody+1)},
		"unnamed": {MsgID: "u", Body: []byte("{}")},
		"empty":   {MsgID: "e", Endpoint: "e"},
	} {
		if isNew, err := deadletter.New(b.Store).Add(t.Context(), l); err != nil || !isNew {
			t.Errorf("%s: new %v, %v", name, isNew, err)
		}
		if isNew, err := deadletter.New(b.Store).Add(t.Context(), l); err != nil || isNew {
			t.Errorf("%s, again: new %v, %v", name, isNew, err)
		}
	}
	_, err := deadletter.New(b.Store).Add(t.Context(), deadletter.DeadLetter{})
	testenv.Fails(t, err, "a letter without a message id was buried")
	out, err := deadletter.New(b.Store).Requeue(t.Context(), deadletter.DeadSelection{All: true, Force: true}, "test")
	if err != nil || out.Requeued != 6 || out.RefusedTotal != 2 ||
		!strings.Contains(out.Refused[0].Reason, "was not kept") {
		t.Errorf("requeued %+v, %v; want all but the two that cannot be sent", out, err)
	}
}

func refs(ids ...workqueue.LetterID) deadletter.DeadSelection {
	var sel deadletter.DeadSelection
	for _, id := range ids {
		sel.Refs = append(sel.Refs, id.String())
	}
	return sel
}

func (b *bench) requeue(sel deadletter.DeadSelection, want int) deadletter.Requeue {
	b.Helper()
	out := testenv.Must(deadletter.New(b.Store).Requeue(b.Context(), sel, "ann"))(b)
	testenv.MustSame(b, out.Requeued, want, "requeued %+v", out)
	return out
}

func TestReissuedLettersAreNotRequeued(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := workqueue.NewRunID()
	l := letter("m", "a")
	l.State, l.Run = deadletter.LetterReissued, &run
	id := b.bury(l)[0]
	sel := refs(id)
	sel.Force = true
	out := b.requeue(sel, 0)
	if len(out.Refused) != 1 || !strings.Contains(out.Refused[0].Reason, "tranche run rerun "+run.String()) {
		t.Errorf("refused %+v; want the remedy", out.Refused)
	}
	testenv.Same(t, b.requeue(deadletter.DeadSelection{All: true}, 0).RefusedTotal, 0, "it counts among those that wait")
	testenv.Same(t, testenv.Must(deadletter.New(b.Store).Drop(t.Context(), refs(id), "ann"))(t), 1, "dropped")
}

// Two operators requeue all there is while a third drops it: each letter goes one way.
func TestLettersMoveOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const letters = 200
	for i := range letters {
		b.bury(letter(strconv.Itoa(i), "a"))
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	moved := 0
	add := func(n int, err error) {
		mu.Lock()
		defer mu.Unlock()
		testenv.Same(t, err, nil, "a move")
		moved += n
	}
	for range 2 {
		wg.Go(func() {
			out, err := deadletter.New(b.Store).Requeue(t.Context(), deadletter.DeadSelection{All: true}, "ann")
			add(out.Requeued, err)
		})
		wg.Go(func() { add(deadletter.New(b.Store).Drop(t.Context(), deadletter.DeadSelection{All: true}, "bob")) })
	}
	wg.Wait()
	testenv.Same(t, moved, letters, "letters moved")
	testenv.Same(t, b.Number(`SELECT count(*) FROM dead_letter WHERE state = 'waiting'`), 0, "letters wait still")
}

// The outbox is read in portions, however large the letters are. What cannot be read now stays in it.
func TestUnsentLettersAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := workqueue.NewRunID()
	for i := range 4 {
		l := letter(strconv.Itoa(i), "a")
		l.Body, l.Run = make([]byte, 5<<20), &run
		b.bury(l)
	}
	b.requeue(deadletter.DeadSelection{All: true}, 4)
	b.Exec(`ALTER TABLE deleted_run RENAME TO away`)
	if left, err := deadletter.New(b.Store).UnsentLetters(t.Context(), 1000); err == nil {
		t.Errorf("%d letters were read without the runs that are gone", len(left))
	}
	b.Exec(`ALTER TABLE away RENAME TO deleted_run`)
	var read []workqueue.LetterID
	for {
		some := testenv.Must(deadletter.New(b.Store).UnsentLetters(t.Context(), 1000))(t)
		if len(some) == 0 {
			break
		}
		if len(some) > 2 {
			t.Fatalf("%d letters of 5 MiB came at once", len(some))
		}
		var ids []workqueue.LetterID
		for _, l := range some {
			ids = append(ids, l.ID)
		}
		testenv.NoError(t, deadletter.New(b.Store).LettersSent(t.Context(), ids))
		read = append(read, ids...)
	}
	testenv.Same(t, len(slices.Compact(read)), 4, "%d letters were read", len(read))
}
