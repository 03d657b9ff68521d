package redo_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/start"
)

// What failed of an open run of several steps is run again while items are still coming, also behind a barrier. The run
// completes once, with the generation that the re-run opened.
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
	passed, err := dispatch.New(b.Store).CheckBarriers(t.Context(), run)
	if err != nil || len(passed) != 1 {
		t.Fatalf("barriers %v passed, %v", passed, err)
	}
	g.work()
	g.wantDone(map[workqueue.Step]int{storetest.Accounts: 8, storetest.Transactions: 3 + 8, storetest.Branches: 8,
		storetest.Statement: 8200, storetest.Posting: 8200})
	b.WantState(run, "completed", 2)
	b.WantCompletions(run, 2)
	b.Check()
}
