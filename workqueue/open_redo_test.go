package workqueue_test

import (
	"testing"

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
	run := b.openRun(func(r *start.OpenRequest) {
		r.LoadRequest = collecting()
		r.Session = b.session
		for i := range r.Steps {
			r.Steps[i].Chunk = 4096
		}
		r.Steps[statement].Barrier = true
	})
	g := &gatherer{bench: b, run: run}
	g.fresh()
	b.add(run, names(8192))
	g.fail(transactions, 1, 2, 3)
	g.work()
	g.wantDone(map[workqueue.Step]int{accounts: 8192, transactions: 8192, branches: 8192})
	if passed, err := dispatch.New(b.store).CheckBarriers(t.Context(), run); err != nil || len(passed) > 0 {
		t.Fatalf("barriers %v passed before the seal, %v", passed, err)
	}
	g.fresh()
	_, err := redo.New(b.store).Rerun(t.Context(), redo.RerunRequest{Run: run, Actor: "test",
		Select: redo.Selection{Failed: true}})
	if err != nil {
		t.Fatal(err)
	}
	more := names(8200)[8192:]
	b.add(run, more)
	g.work()
	b.check()
	b.seal(run)
	g.work()
	passed, err := dispatch.New(b.store).CheckBarriers(t.Context(), run)
	if err != nil || len(passed) != 1 {
		t.Fatalf("barriers %v passed, %v", passed, err)
	}
	g.work()
	g.wantDone(map[workqueue.Step]int{accounts: 8, transactions: 3 + 8, branches: 8, statement: 8200, posting: 8200})
	b.wantState(run, "completed", 2)
	b.wantCompletions(run, 2)
	b.check()
}
