package redo_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/start"
)

// What failed of an open run of several steps is run again while items are still coming, also behind a barrier. The run
// completes once, with the generation that the rerun opened.
func TestRerunOfAnOpenRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.OpenRun(func(r *start.OpenRequest) {
		r.LoadRequest = storetest.Collecting()
		r.Session = b.Session
		for i := range r.Steps {
			r.Steps[i].Chunk = 4096
		}
		r.Steps[storetest.Statement].Barrier = true
	})
	g := &gatherer{bench: b, run: run}
	g.fresh()
	b.Add(run, storetest.Names(8192))
	g.fail(storetest.Transactions, 1, 2, 3)
	g.work()
	g.wantDone(map[workqueue.Step]int{storetest.Accounts: 8192, storetest.Transactions: 8192, storetest.Branches: 8192})
	if passed, err := dispatch.New(b.Store).CheckBarriers(t.Context(), run); err != nil || len(passed) > 0 {
		t.Fatalf("barriers %v passed before the seal, %v", passed, err)
	}
	g.fresh()
	testenv.Must(redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Actor: "test",
		Select: redo.Selection{Failed: true}}))(t)
	more := storetest.Names(8200)[8192:]
	b.Add(run, more)
	g.work()
	b.Check()
	b.Seal(run)
	g.work()
	passed := testenv.Must(dispatch.New(b.Store).CheckBarriers(t.Context(), run))(t)
	testenv.MustSame(t, len(passed), 1, "barriers %v passed", passed)
	g.work()
	g.wantDone(map[workqueue.Step]int{storetest.Accounts: 8, storetest.Transactions: 3 + 8, storetest.Branches: 8,
		storetest.Statement: 8200, storetest.Posting: 8200})
	b.WantState(run, "completed", 2)
	b.WantCompletions(run, 2)
	b.Check()
}

// Settings that a step has no use for, or that do not say which step they are for, are refused, and change nothing.
func TestSettingsOfStepsOfSeveralKinds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Collecting()
	req.Steps[storetest.Statement].Kind = workqueue.KindLocal
	req.Steps[storetest.Statement].Endpoint = workqueue.TargetKey(workqueue.KindLocal, "render")
	g := &gatherer{bench: b, run: b.Load(req, 8)}
	g.fresh()
	g.fail(storetest.Statement, 3)
	g.work()

	refused := func(what string, err error, want ...string) {
		t.Helper()
		_ = testenv.As[*workqueue.SettingError](t, err, "%s", what)
		for _, w := range want {
			testenv.Says(t, err, w, "%s", what)
		}
	}
	_, err := redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: g.run, Actor: "test",
		Select: redo.Selection{Failed: true}, Settings: control.StepChange{Endpoint: "other"}})
	refused("another endpoint for a local function", err, "endpoint other", "step statement", "local:render")
	_, err = control.New(b.Store).SetRun(t.Context(), control.RunChange{Run: g.run, Actor: "test",
		Settings: storetest.Chunking(2, 0)})
	refused("a chunk for no step", err, "several steps", "accounts, transactions")
	b.WantState(g.run, "completed", 1)
	priority := 3
	_, err = control.New(b.Store).SetRun(t.Context(), control.RunChange{Run: g.run, Priority: &priority, Actor: "test"})
	testenv.Same(t, err, nil, "a priority needs no step")
	_, err = control.New(b.Store).SetRun(t.Context(), control.RunChange{Run: g.run, Step: "statement", Actor: "test",
		Settings: storetest.Chunking(2, 0)})
	testenv.NoError(t, err)
	b.Check()
}

// Steps that see payloads do corrected items again; those after them only where a part changes, or with a cascade.
func TestStepsAfterFollowACorrection(t *testing.T) {
	t.Parallel()
	for _, cascade := range []bool{false, true} {
		t.Run(fmt.Sprint("cascade ", cascade), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			req := storetest.Collecting()
			for i := range req.Steps {
				req.Steps[i].NoItem = i != int(storetest.Accounts) // the others see parts, or only the key
			}
			g := &gatherer{bench: b, run: b.Load(req, 3)}
			g.fresh()
			g.fail(storetest.Transactions, 1)
			g.work()
			b.WantState(g.run, "completed", 1)
			g.fresh()
			out := testenv.Must(redo.New(b.Store).Correct(t.Context(), redo.CorrectRequest{Run: g.run, Actor: "ann",
				Cascade: cascade, Items: storetest.Corrections(`{"fixed":true}`, "C0", "C1")}))(t)
			testenv.MustSame(t, out.Begun, 2, "corrected")
			g.work()
			b.WantState(g.run, "completed", 2)
			want := map[workqueue.Step]string{storetest.Accounts: "[0 1]", storetest.Transactions: "[1]",
				storetest.Branches: "[]", storetest.Statement: "[1]",
				storetest.Posting: "[1]"}
			if cascade {
				want[storetest.Statement], want[storetest.Posting] = "[0 1]", "[0 1]"
			}
			for s, items := range want {
				slices.Sort(g.did[s])
				testenv.Same(t, fmt.Sprint(g.did[s]), items, "step %s was done for", storetest.StepNames()[s])
			}
			kept := b.Report(g.run).Corrected
			if made := map[bool]int64{false: 1, true: 2}[cascade]; kept.Made != made || kept.Kept != 2-made {
				t.Errorf("the report: %+v", kept)
			}
			b.Check()
		})
	}
}

func (b *bench) accept(run workqueue.RunID, sel redo.Selection) redo.Acceptance {
	b.Helper()
	return testenv.Must(redo.New(b.Store).Accept(b.Context(), redo.AcceptRequest{Run: run, Select: sel, Reason: "r",
		Actor: "ann"}))(b)
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
	defer func() { _ = reading.Rollback(context.Background()) }() // no effect after the commit
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
	_, err := step.Exec(t.Context(), `SELECT FROM run_step WHERE run_id = $1 FOR UPDATE NOWAIT`, run)
	testenv.MustSame(t, err, nil, "while it looks, no one has the steps")
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
	testenv.Same(t, accepted.Items, size-1, "items accepted: those that were found, except who failed otherwise")
	testenv.Same(t, b.Number(`SELECT count(*) FROM work_result p JOIN work_block k USING (run_id, step) WHERE run_id = $1
		AND p.error_code = 'other' AND k.block = p.ordinal / 8192 AND get_bit(k.accepted, p.ordinal % 8192) = 1`,
		run), 0, "accepted items that failed otherwise")
	for _, s := range out[2:] {
		b.Record(storetest.Whole(s))
	}
	testenv.Same(t, b.Number(`SELECT (payload->>'accepted')::int FROM run_event WHERE run_id = $1 AND kind = 'completed'`,
		run), int(size-1), "items that the completion says are accepted")
	b.Check()
}
