package redo_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/settle"
)

func TestRerunOfFailedItems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, even, odd := b.Damaged(20_000)
	out, err := redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Select: redo.Selection{Failed: true},
		Settings: storetest.Chunking(1, 7), Actor: "operator"})
	if err != nil || out.Items != int64(even+odd) || out.Blocks != 3 || out.Generation != 2 {
		t.Fatalf("rerun %+v, %v; want %d items in 3 blocks", out, err, even+odd)
	}
	b.WantState(run, "running", 2)
	b.WantTally(run, storetest.Tally{Ready: even + odd, Done: 20_000 - even - odd})
	b.Check()
	claimed := b.Claim(run, storetest.Plenty)
	if len(claimed) != 7 || claimed[0].Mask.Count() != 1 || claimed[0].Generation != 2 || claimed[0].Attempt != 1 {
		t.Errorf("claimed %d slices like %+v; want 7 of one item in generation 2", len(claimed), claimed[0].Cause)
	}
	for _, s := range claimed {
		b.Record(storetest.Whole(s))
	}
	b.Exec(`UPDATE run_step SET chunk = 500, in_flight = 100`)
	b.Finish(run)
	b.WantState(run, "completed", 2)
	b.WantTally(run, storetest.Tally{Done: 20_000})
	b.WantCompletions(run, 1, 2)
	if n := b.Number(`SELECT count(*) FROM audit_log WHERE run_id = $1 AND action = 'rerun' AND actor = 'operator'`,
		run); n != 1 {
		t.Errorf("%d audit rows; want 1", n)
	}
	b.Check()
}

func TestRerunByCode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, even, odd := b.Damaged(9000)
	if out := b.Rerun(run, redo.Selection{Codes: []string{"odd", "unheard_of"}}); out.Items != int64(odd) {
		t.Errorf("rerun %+v; want %d items", out, odd)
	}
	b.Check()
	for _, s := range b.Claim(run, storetest.Plenty) { // they fail again, otherwise
		b.Record(storetest.Faulty(s, workqueue.SlotError{Code: "even", Message: "m"}))
	}
	b.WantState(run, "completed", 2)
	again := redo.RerunRequest{Run: run, Select: redo.Selection{Codes: []string{"odd"}}}
	_, err := redo.New(b.Store).Rerun(t.Context(), again)
	if _, ok := errors.AsType[*redo.NothingToRerunError](err); !ok {
		t.Errorf("rerun of a code that no longer counts: %v; want a NothingToRerunError", err)
	}
	b.WantState(run, "completed", 2)
	if out := b.Rerun(run, redo.Selection{Codes: []string{"even"}}); out.Items != int64(even+odd) {
		t.Errorf("rerun %+v; want %d items", out, even+odd)
	}
	b.Finish(run)
	b.WantCompletions(run, 1, 2, 3)
	b.WantTally(run, storetest.Tally{Done: 9000})
	b.Check()
}

func TestRerunByKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, even, odd := b.Damaged(9000)
	out := b.Rerun(run, redo.Selection{Keys: []string{"C0", "C1", "C8999", "C1"}})
	if out.Items != 3 || out.Blocks != 2 {
		t.Errorf("rerun %+v; want one failed and two done items", out)
	}
	b.Check()
	_, err := redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Select: redo.Selection{
		Keys: []string{"C2", "X", "Y"}}})
	var unknown *redo.UnknownKeysError
	if !errors.As(err, &unknown) || fmt.Sprint(unknown.Keys) != "[X Y]" || !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("unknown keys: %v", err)
	}
	b.Finish(run)
	b.WantTally(run, storetest.Tally{Done: 9000 - even - odd + 1, Failed: even + odd - 1})
	b.WantCompletions(run, 1, 2)
	b.Check()
}

// A re-run of a run that is in progress opens a new generation; what is in flight goes on in the old one, and
// completion is told once, of the last.
func TestRerunWhileRunning(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 12)
	first, second, third := b.One(run), b.One(run), b.One(run)
	b.Record(storetest.Faulty(first, workqueue.SlotError{Code: "bad", Message: "m"}))
	if out := b.Rerun(run, redo.Selection{Failed: true}); out.Items != 4 || out.Generation != 2 {
		t.Errorf("rerun %+v", out)
	}
	b.Check()
	b.Record(storetest.Whole(second))
	again := b.One(run)
	if again.Generation != 2 || again.Mask != first.Mask {
		t.Errorf("the re-run's slice is %+v", again)
	}
	if v := b.Record(storetest.Whole(first)).Verdicts[0]; !v.Stale {
		t.Errorf("a late reply of generation 1: %+v; want it stale", v)
	}
	b.Record(storetest.Faulty(again, workqueue.SlotError{Code: "bad", Message: "m"}))
	b.Rerun(run, redo.Selection{Failed: true})
	b.Check()
	b.Finish(run)
	b.WantState(run, "running", 3)
	b.Record(storetest.Whole(third)) // claimed in generation 1
	b.WantState(run, "completed", 3)
	b.WantCompletions(run, 3)
	b.WantTally(run, storetest.Tally{Done: 12})
	b.Check()
}

func TestRerunRefusals(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 4)
	var nothing *redo.NothingToRerunError
	var state *workqueue.StateError
	failed := redo.Selection{Failed: true}
	try := func(run workqueue.RunID, sel redo.Selection) error {
		_, err := redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Select: sel})
		return err
	}
	if err := try(run, failed); !errors.As(err, &nothing) {
		t.Errorf("nothing failed: %v", err)
	}
	if err := try(run, redo.Selection{Keys: []string{"C1"}}); !errors.As(err, &nothing) {
		t.Errorf("an item in progress: %v", err)
	}
	if err := try(workqueue.NewRunID(), failed); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("no such run: %v", err)
	}
	if err := try(run, redo.Selection{}); err == nil {
		t.Error("an empty selection was taken")
	}
	if err := try(run, redo.Selection{Failed: true, Keys: []string{"C1"}}); err == nil {
		t.Error("two selections were taken")
	}
	if _, err := control.New(b.Store).Cancel(t.Context(), control.Control{Run: run, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	if err := try(run, failed); !errors.As(err, &state) {
		t.Errorf("a cancelled run: %v", err)
	}
	b.Check()
}

func TestCancel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 16)
	claimed := b.Claim(run, 3)
	b.Send(claimed[1])
	b.Record(storetest.Whole(claimed[0]))
	out, err := control.New(b.Store).Cancel(t.Context(), control.Control{Run: run, Actor: "operator"})
	if err != nil || out.Items != 12 || len(out.Requests) != 2 {
		t.Errorf("cancelled %+v, %v; want 12 items and 2 slices", out, err)
	}
	if v := b.Record(storetest.Whole(claimed[1]), storetest.Whole(claimed[2])).Verdicts; !v[0].Stale || !v[1].Stale {
		t.Errorf("replies after the cancel: %+v; want them stale", v)
	}
	if n := len(b.Claim(run, storetest.Plenty)); n != 0 {
		t.Errorf("%d slices of a cancelled run were claimed", n)
	}
	var state *workqueue.StateError
	if _, err := control.New(b.Store).Cancel(t.Context(), control.Control{Run: run, Actor: "operator"}); !errors.As(err,
		&state) {
		t.Errorf("the second cancel: %v; want a StateError", err)
	}
	_, err = control.New(b.Store).Cancel(t.Context(), control.Control{Run: workqueue.NewRunID(), Actor: "operator"})
	if !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("no such run: %v", err)
	}
	b.WantState(run, "cancelled", 1)
	b.WantCompletions(run)
	b.Check()
	done := b.Load(storetest.Request(), 4)
	b.Finish(done)
	if _, err := control.New(b.Store).Cancel(t.Context(), control.Control{Run: done, Actor: "operator"}); !errors.As(err,
		&state) {
		t.Errorf("cancel of a completed run: %v; want a StateError", err)
	}
}

// A cancel races claims, records and re-runs. Whoever wins, the run ends in one way, and nothing moves afterwards.
func TestCancelRaces(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cancelled, completed := 0, 0
	for round := range 25 {
		run := b.Load(storetest.Request(), 24)
		var wg sync.WaitGroup
		work := func() {
			for range 10 {
				out, err := dispatch.New(b.Store).Claim(t.Context(), b.ClaimRequest(run, 1))
				claimed := out.Slices
				if err != nil && !errors.Is(err, workqueue.ErrBusy) {
					t.Error(err)
				}
				for _, s := range claimed {
					a := storetest.Whole(s)
					a.Slots[0].Result, a.Slots[0].Err = nil, &workqueue.SlotError{Code: "x", Message: "m", Retry: true}
					if _, err := settle.New(b.Store).Record(t.Context(), []settle.Answer{a}); err != nil {
						t.Error(err)
					}
				}
			}
		}
		var working atomic.Int32
		working.Store(3)
		for range working.Load() {
			wg.Go(func() {
				defer working.Add(-1)
				work()
			})
		}
		rerun := false
		wg.Go(func() {
			b.Until("some work is done, or no one does any", func() bool { // who was in the others' way did nothing
				return b.Number(`SELECT count(*) FROM work_result WHERE run_id = $1`, run) >= round%20 || working.Load() == 0
			})
			var state *workqueue.StateError
			_, err := control.New(b.Store).Cancel(t.Context(), control.Control{Run: run, Actor: "test"})
			if err != nil && !errors.As(err, &state) {
				t.Errorf("round %d: cancel: %v", round, err)
			}
		})
		wg.Go(func() {
			again := redo.RerunRequest{Run: run, Select: redo.Selection{Keys: []string{"C1"}}}
			_, err := redo.New(b.Store).Rerun(t.Context(), again)
			var nothing *redo.NothingToRerunError
			var state *workqueue.StateError
			if err != nil && !errors.As(err, &nothing) && !errors.As(err, &state) {
				t.Errorf("round %d: rerun: %v", round, err)
			}
			rerun = err == nil
		})
		wg.Wait()
		if state, _ := b.State(run); state == "running" && rerun { // it came last, and no one was left to do the work
			work()
		}
		switch state, _ := b.State(run); state {
		case "cancelled":
			cancelled++
			if n := b.Number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND state IN ('scheduled', 'claimed', 'sent')`,
				run); n != 0 {
				t.Errorf("round %d: %d slices live on", round, n)
			}
		case "completed":
			completed++
		default:
			t.Errorf("round %d: the run is %s", round, state)
		}
	}
	t.Logf("%d cancelled, %d completed", cancelled, completed)
	b.Check()
}
