package workqueue_test

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

func refs(ids ...workqueue.LetterID) deadletter.DeadSelection {
	var sel deadletter.DeadSelection
	for _, id := range ids {
		sel.Refs = append(sel.Refs, id.String())
	}
	return sel
}

func (b *bench) requeue(sel deadletter.DeadSelection, want int) deadletter.Requeue {
	b.Helper()
	out, err := deadletter.New(b.Store).Requeue(b.Context(), sel, "ann")
	if err != nil || out.Requeued != want {
		b.Fatalf("requeued %+v, %v; want %d", out, err, want)
	}
	return out
}

// unsent returns what the outbox holds.
func (b *bench) unsent() []deadletter.UnsentLetter {
	b.Helper()
	letters, err := deadletter.New(b.Store).UnsentLetters(b.Context(), 1000)
	if err != nil {
		b.Fatal(err)
	}
	return letters
}

// TestRequeueByForceOfOneThatWasSent is for an operator whose stream was lost.
func TestRequeueByForceOfOneThatWasSent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.bury(letter("0", "a"))
	b.requeue(refs(ids[0]), 1)
	if err := deadletter.New(b.Store).LettersSent(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	b.requeue(refs(ids[0]), 0)
	sel := refs(ids[0])
	sel.Force = true
	b.requeue(sel, 1)
	if unsent := b.unsent(); len(unsent) != 1 || unsent[0].Requeued != 2 {
		t.Errorf("to be sent: %+v", unsent)
	}
}

func TestRequeue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.bury(letter("0", "a"), letter("1", "a"), letter("2", "b"), letter("3", "b"))
	b.requeue(refs(ids[0]), 1)
	out := b.requeue(refs(ids[0], ids[1], ids[0]), 1)
	if len(out.Refused) != 1 || out.Refused[0].ID != ids[0] || !strings.Contains(out.Refused[0].Reason, "already") {
		t.Errorf("refused %+v", out.Refused)
	}
	b.requeue(deadletter.DeadSelection{Endpoint: "a"}, 0)
	b.requeue(deadletter.DeadSelection{Endpoint: "b"}, 2)
	b.requeue(deadletter.DeadSelection{All: true}, 0)
	unsent := b.unsent()
	if len(unsent) != 4 || unsent[0].ID != ids[0] || unsent[0].Requeued != 1 || unsent[0].Endpoint != "a" ||
		unsent[0].Headers["Tranche-Mode"][0] != "single" || len(unsent[0].Body) == 0 {
		t.Errorf("to be sent: %+v", unsent)
	}
	for range 2 { // two nodes sent them
		if err := deadletter.New(b.Store).LettersSent(t.Context(), ids[:3]); err != nil {
			t.Fatal(err)
		}
	}
	if left := b.unsent(); len(left) != 1 || left[0].ID != ids[3] {
		t.Errorf("left to be sent: %+v", left)
	}
	if n := b.Number(`SELECT count(*) FROM audit_log WHERE action = 'dead_letter_requeue' AND actor = 'ann'
		AND run_id IS NULL`); n != 3 {
		t.Errorf("%d audit rows; want one for each action", n)
	}
	if n := b.Number(`SELECT count(*) FROM audit_log WHERE detail->>'letters' = '2'
		AND jsonb_array_length(detail->'ids') = 2 AND detail->>'endpoint' = 'b' AND subject = 'b'
		AND before = '{"waiting": 2}' AND after = '{"requeued": 2}'`); n != 1 {
		t.Error("the audit row does not say what was requeued")
	}
}

// What was requeued again and again dies again and again. It takes force to go on.
func TestRequeueGuardsAgainstLoops(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tired := letter("m", "a")
	tired.Requeued = deadletter.MaxRequeues - 1
	id := b.bury(tired)[0]
	b.requeue(refs(id), 1)
	if again := b.unsent(); len(again) != 1 || again[0].Requeued != deadletter.MaxRequeues {
		t.Errorf("to be sent: %+v", again)
	}
	tired.MsgID, tired.Requeued = "m2", deadletter.MaxRequeues
	id = b.bury(tired)[0]
	for name, sel := range map[string]deadletter.DeadSelection{
		"named": refs(id), "endpoint": {Endpoint: "a"}, "all": {All: true},
	} {
		out := b.requeue(sel, 0)
		if out.RefusedTotal != 1 || len(out.Refused) != 1 || out.Refused[0].ID != id ||
			!strings.Contains(out.Refused[0].Reason, "force") {
			t.Errorf("%s: refused %+v", name, out)
		}
	}
	forced := refs(id)
	forced.Force = true
	b.requeue(forced, 1)
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
	if out := b.requeue(deadletter.DeadSelection{All: true}, 0); out.RefusedTotal != 0 {
		t.Errorf("it counts among those that wait: %+v", out)
	}
	if n, err := deadletter.New(b.Store).Drop(t.Context(), refs(id), "ann"); err != nil || n != 1 {
		t.Errorf("dropped %d, %v", n, err)
	}
}

func TestDrop(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.bury(letter("0", "a"), letter("1", "a"), letter("2", "b"), letter("3", "b"))
	drop := func(sel deadletter.DeadSelection, want int) {
		t.Helper()
		if n, err := deadletter.New(b.Store).Drop(t.Context(), sel, "ann"); err != nil || n != want {
			t.Errorf("dropped %d, %v; want %d", n, err, want)
		}
	}
	drop(refs(ids[0]), 1)
	drop(refs(ids[0]), 0)
	b.requeue(refs(ids[1]), 1)
	_, err := deadletter.New(b.Store).Drop(t.Context(), refs(ids[2], ids[1]), "ann")
	if state, ok := errors.AsType[*deadletter.LetterStateError](err); !ok || state.ID != ids[1] {
		t.Errorf("drop a requeued letter: %v", err)
	}
	drop(deadletter.DeadSelection{Endpoint: "a"}, 0)
	drop(deadletter.DeadSelection{All: true}, 2)
	l, err := deadletter.New(b.Store).DeadLetter(t.Context(), ids[0].String())
	if err != nil || l.State != deadletter.LetterDropped || l.Body != nil {
		t.Errorf("the dropped letter is %+v, %v", l, err)
	}
	if out := b.requeue(refs(ids[0]), 0); len(out.Refused) != 1 {
		t.Errorf("a dropped letter was not refused: %+v", out)
	}
	if n := b.Number(`SELECT count(*) FROM audit_log WHERE action = 'dead_letter_drop' AND actor = 'ann'
		AND before->>'waiting' = after->>'dropped'`); n != 2 {
		t.Errorf("%d audit rows; want one for each drop", n)
	}
}

func TestDeadSelectionIsOneOfThree(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, sel := range []deadletter.DeadSelection{
		{}, {All: true, Endpoint: "a"}, {Refs: []string{"0000"}, All: true}, {Refs: make([]string, 1001)},
		{Endpoint: "\x00"}, {Refs: []string{"0000"}},
	} {
		if _, err := deadletter.New(b.Store).Requeue(t.Context(), sel, "ann"); err == nil {
			t.Errorf("requeue of %d refs, %q, %v was taken", len(sel.Refs), sel.Endpoint, sel.All)
		}
		if _, err := deadletter.New(b.Store).Drop(t.Context(), sel, "ann"); err == nil {
			t.Errorf("drop of %d refs, %q, %v was taken", len(sel.Refs), sel.Endpoint, sel.All)
		}
	}
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
		if err != nil {
			t.Error(err)
		}
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
	if moved != letters {
		t.Errorf("%d letters moved; want %d", moved, letters)
	}
	if n := b.Number(`SELECT count(*) FROM dead_letter WHERE state = 'waiting'`); n != 0 {
		t.Errorf("%d letters wait still", n)
	}
}

// The outbox is read in portions, however large the letters are.
func TestUnsentLettersAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 4 {
		l := letter(strconv.Itoa(i), "a")
		l.Body = make([]byte, 5<<20)
		b.bury(l)
	}
	b.requeue(deadletter.DeadSelection{All: true}, 4)
	var read []workqueue.LetterID
	for {
		some := b.unsent()
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
		if err := deadletter.New(b.Store).LettersSent(t.Context(), ids); err != nil {
			t.Fatal(err)
		}
		read = append(read, ids...)
	}
	if len(slices.Compact(read)) != 4 {
		t.Errorf("%d letters were read; want 4", len(read))
	}
}

func TestRequeueOfALetterThatClaimsTheMost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	odd := letter("odd", "accounts")
	odd.Requeued, odd.Deliveries, odd.Items = math.MaxInt, math.MaxInt, math.MaxInt
	b.bury(odd, letter("plain", "accounts"))
	out, err := deadletter.New(b.Store).Requeue(t.Context(), deadletter.DeadSelection{All: true, Force: true}, "ann")
	if err != nil || out.Requeued != 2 {
		t.Errorf("%+v, %v; want both requeued", out, err)
	}
}
