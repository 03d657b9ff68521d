package redo_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// accept accepts failures, which must succeed.
func (b *bench) accept(run workqueue.RunID, sel redo.Selection) redo.Acceptance {
	b.Helper()
	out, err := redo.New(b.Store).Accept(b.Context(), redo.AcceptRequest{Run: run, Select: sel, Reason: "r",
		Actor: "ann"})
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// wantAccepted compares how many items a run says have failed, and are accepted.
func (b *bench) wantAccepted(run workqueue.RunID, failed, accepted int64) {
	b.Helper()
	view, err := inspect.New(b.Store).Run(b.Context(), run)
	if err != nil {
		b.Fatal(err)
	}
	if view.Failed != failed || view.Accepted != accepted {
		b.Errorf("%d items failed, %d of them accepted; want %d, %d", view.Failed, view.Accepted, failed, accepted)
	}
}

// unaccepted is how many failed items health is told of.
func (b *bench) unaccepted() (items int64) {
	b.Helper()
	facts, err := health.New(b.Store).Health(b.Context(), health.Limits{Listed: 10})
	if err != nil {
		b.Fatal(err)
	}
	for i := range facts.Conditions {
		if c := &facts.Conditions[i]; c.Kind == health.FailedItems {
			items += c.Count
		}
	}
	return items
}

// What is run again is accepted no more, however that ends; what is not stays so, over the completion.
func TestRerunTakesAcceptanceAway(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, even, odd := b.Damaged(600)
	b.accept(run, redo.Selection{Codes: []string{"even"}})
	tried, err := redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, DryRun: true, Actor: "ann",
		Select: redo.Selection{Failed: true}})
	if err != nil || tried.Items != int64(odd) {
		t.Errorf("of all that failed %d would be run again, %v; want %d, which are not accepted", tried.Items, err, odd)
	}
	b.accept(run, redo.Selection{Failed: true})
	_, err = redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Actor: "ann",
		Select: redo.Selection{Failed: true}})
	if nothing := (*redo.NothingToRerunError)(nil); !errors.As(err, &nothing) {
		t.Errorf("when all is accepted: %v", err)
	}
	b.again(redo.RerunRequest{Run: run, Select: redo.Selection{Codes: []string{"odd"}}})
	b.wantAccepted(run, int64(even), int64(even))
	b.Check()
	for _, s := range b.Claim(run, storetest.Plenty) {
		b.Record(storetest.Faulty(s, workqueue.SlotError{Code: "odd", Message: "m"}))
	}
	b.WantState(run, "completed", 2)
	b.wantAccepted(run, int64(even+odd), int64(even))
	if n := b.unaccepted(); n != int64(odd) {
		t.Errorf("health is told of %d failed items; want %d", n, odd)
	}
	b.Check()
}

// What is accepted while the last reply completes the run, and has counted its failures already, is counted too.
func TestAcceptWhileTheRunCompletes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(bitfield.Size), bitfield.Size+8) // in two blocks, each with its own lock
	out := b.Claim(run, storetest.Plenty)
	b.Record(storetest.Faulty(out[0], workqueue.SlotError{Code: "bad", Message: "m"}))
	tx, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }() // in vain after the commit
	if _, err := tx.Exec(t.Context(), `SELECT FROM batchrun WHERE id = $1 FOR NO KEY UPDATE`, run); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { b.Record(storetest.Whole(out[1])) })
	waiting := func() int {
		return b.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock'`)
	}
	b.Until("the completion waits for the lock", func() bool { return waiting() == 1 })
	accepted := make(chan struct{})
	wg.Go(func() {
		b.accept(run, redo.Selection{Failed: true})
		close(accepted)
	})
	b.Until("the acceptance waits, or is done", func() bool {
		select {
		case <-accepted:
			return true
		default:
			return waiting() == 2
		}
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	b.WantState(run, "completed", 1)
	b.wantAccepted(run, bitfield.Size, bitfield.Size)
	b.Check()
}

// Looking for what is to be accepted, which takes long in a large run, holds up no one; what changes before the locks
// are there is seen under them: who is not failed any more, and who has failed otherwise, is not accepted.
func TestAcceptFindsBeforeItLocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 24)
	out := b.Claim(run, storetest.Plenty)
	b.Record(storetest.Faulty(out[0], workqueue.SlotError{Code: "bad", Message: "m"}))
	size := int64(out[0].Mask.Count())
	reading, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reading.Rollback(context.Background()) }() // in vain after the commit
	step, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = step.Rollback(context.Background()) }() // as above
	if _, err := reading.Exec(t.Context(), `LOCK TABLE work_result IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var accepted redo.Acceptance
	wg.Go(func() { accepted = b.accept(run, redo.Selection{Codes: []string{"bad"}}) })
	waits := func(lock string) func() bool {
		return func() bool {
			return b.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
				AND wait_event_type = 'Lock' AND wait_event = $1`, lock) == 1
		}
	}
	b.Until("it looks for the items", waits("relation"))
	if _, err := step.Exec(t.Context(), `SELECT FROM run_step WHERE run_id = $1 FOR UPDATE NOWAIT`, run); err != nil {
		t.Fatalf("while it looks, no one has the steps: %v", err)
	}
	if err := reading.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Until("it waits for the steps", func() bool { return waits("transactionid")() || waits("tuple")() })
	// in the same block: it came too late
	b.Record(storetest.Faulty(out[1], workqueue.SlotError{Code: "bad", Message: "m"}))
	for _, change := range []string{
		`UPDATE work_result SET error_code = 'other' WHERE run_id = $1 AND error_code = 'bad' AND ordinal =
			(SELECT min(ordinal) FROM work_result WHERE run_id = $1)`,
		`UPDATE work_block SET ready = ready WHERE run_id = $1`,
	} {
		if _, err := step.Exec(t.Context(), change, run); err != nil {
			t.Fatal(err)
		}
	}
	if err := step.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if want := size - 1; accepted.Items != want {
		t.Errorf("%d items are accepted; want %d: those that were found, but for who failed otherwise", accepted.Items, want)
	}
	if n := b.Number(`SELECT count(*) FROM work_result p JOIN work_block k USING (run_id, step) WHERE run_id = $1
		AND p.error_code = 'other' AND k.block = p.ordinal / 8192 AND get_bit(k.accepted, p.ordinal % 8192) = 1`,
		run); n != 0 {
		t.Error("an item was accepted that failed otherwise")
	}
	b.Finish(run)
	b.Check()
}
