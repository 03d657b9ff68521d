package workqueue_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
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
	letters := testenv.Must(deadletter.New(b.Store).UnsentLetters(b.Context(), 1000))(b)
	return letters
}

// TestRequeueByForceOfOneThatWasSent is for an operator whose stream was lost.
func TestRequeueByForceOfOneThatWasSent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.bury(letter("0", "a"))
	b.requeue(refs(ids[0]), 1)
	testenv.NoError(t, deadletter.New(b.Store).LettersSent(t.Context(), ids))
	b.requeue(refs(ids[0]), 0)
	sel := refs(ids[0])
	sel.Force = true
	b.requeue(sel, 1)
	if unsent := b.unsent(); len(unsent) != 1 || unsent[0].Requeued != 2 {
		t.Errorf("to be sent: %+v", unsent)
	}
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
		testenv.NoError(t, deadletter.New(b.Store).LettersSent(t.Context(), ids))
		read = append(read, ids...)
	}
	if len(slices.Compact(read)) != 4 {
		t.Errorf("%d letters were read; want 4", len(read))
	}
}
