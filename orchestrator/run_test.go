package orchestrator_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/workqueue/redo"
)

func TestRunCompletesAndFailedItemsAreRunAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var repaired atomic.Bool
	b.Serve(t, "statement", func(_ context.Context, chunk *nodetest.Chunk) error {
		for _, item := range chunk.Items() {
			if item.In.ID == "C7" && !repaired.Load() {
				item.Fail("no_balance", "the account has no balance")
				continue
			}
			item.Reply(nodetest.Statement{Of: item.In.ID})
		}
		return nil
	})
	run := b.Start(t, nodetest.Request("statement"), 20_000)
	if done, failed := b.Outcome(t, run, 1); done != 19_999 || failed != 1 {
		t.Fatalf("done %d, failed %d; want 19999 and 1", done, failed)
	}
	b.Check(t)
	repaired.Store(true)
	rerun, err := b.Node.Runs().Rerun(t.Context(), redo.RerunRequest{Run: run, Select: redo.Selection{Failed: true},
		Settings: chunked(1), Actor: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if rerun.Items != 1 || rerun.Generation != 2 {
		t.Fatalf("rerun %+v; want 1 item in generation 2", rerun)
	}
	if done, failed := b.Outcome(t, run, 2); done != 20_000 || failed != 0 {
		t.Fatalf("done %d, failed %d; want 20000 and 0", done, failed)
	}
	b.Check(t)
}

func TestParamsOfARunReachTheHandler(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var odd atomic.Int64
	b.Serve(t, "statement", func(ctx context.Context, chunk *nodetest.Chunk) error {
		if chunk.Param("year") != "2026" || chunk.Param("title") != `<é "quoted">` || len(chunk.Params()) != 2 {
			odd.Add(1)
		}
		return nodetest.Echo(ctx, chunk)
	})
	req := nodetest.Request("statement")
	req.Params = map[string]string{"year": "2026", "title": `<é "quoted">`}
	run := b.Start(t, req, 1200)
	if done, failed := b.Outcome(t, run, 1); done != 1200 || failed != 0 {
		t.Fatalf("done %d, failed %d; want 1200 and 0", done, failed)
	}
	if n := odd.Load(); n != 0 {
		t.Errorf("%d chunks came without the parameters", n)
	}
	b.Check(t)
}
