package redo_test

import (
	"context"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// accept accepts failures, which must succeed.
func (b *bench) accept(run workqueue.RunID, sel redo.Selection) redo.Acceptance {
	b.Helper()
	out := testenv.Must(redo.New(b.Store).Accept(b.Context(), redo.AcceptRequest{Run: run, Select: sel, Reason: "r",
		Actor: "ann"}))(b)
	return out
}

// wantAccepted compares how many items a run says have failed, and are accepted.
func (b *bench) wantAccepted(run workqueue.RunID, failed, accepted int64) {
	b.Helper()
	view := testenv.Must(inspect.New(b.Store).Run(b.Context(), run))(b)
	if view.Failed != failed || view.Accepted != accepted {
		b.Errorf("%d items failed, %d of them accepted; want %d, %d", view.Failed, view.Accepted, failed, accepted)
	}
}

// What is accepted while the last reply completes the run, and has counted its failures already, is counted too.
func TestAcceptWhileTheRunCompletes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(bitfield.Size), bitfield.Size+8) // in two blocks, each with its own lock
	out := b.Claim(run, storetest.Plenty)
	b.Record(storetest.Faulty(out[0], workqueue.SlotError{Code: "bad", Message: "m"}))
	release := b.HoldRows(`SELECT FROM batchrun WHERE id = $1 FOR NO KEY UPDATE`, run)
	var wg sync.WaitGroup
	wg.Go(func() { b.Record(storetest.Whole(out[1])) })
	b.Until("the completion waits for the lock", func() bool { return b.Waiters() == 1 })
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
			return b.Waiters() == 2
		}
	})
	release()
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
	reading := testenv.Must(b.Pool.Begin(t.Context()))(t)
	defer func() { _ = reading.Rollback(context.Background()) }() // in vain after the commit
	step := testenv.Must(b.Pool.Begin(t.Context()))(t)
	defer func() { _ = step.Rollback(context.Background()) }() // as above
	testenv.Must(reading.Exec(t.Context(), `LOCK TABLE work_result IN ACCESS EXCLUSIVE MODE`))(t)
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
	testenv.NoError(t, reading.Commit(t.Context()))
	b.Until("it waits for the steps", func() bool { return waits("transactionid")() || waits("tuple")() })
	// in the same block: it came too late
	b.Record(storetest.Faulty(out[1], workqueue.SlotError{Code: "bad", Message: "m"}))
	for _, change := range []string{
		`UPDATE work_result SET error_code = 'other' WHERE run_id = $1 AND error_code = 'bad' AND ordinal =
			(SELECT min(ordinal) FROM work_result WHERE run_id = $1)`,
		`UPDATE work_block SET ready = ready WHERE run_id = $1`,
	} {
		testenv.Must(step.Exec(t.Context(), change, run))(t)
	}
	testenv.NoError(t, step.Commit(t.Context()))
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
