package orchestrator_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/redo"
)

const nothingOut = `SELECT NOT EXISTS (SELECT FROM work_slice WHERE state IN ('claimed', 'sent'))`

// A run that fails is held by itself long before all of it has failed; fixed and resumed, it completes.
func TestThresholdHoldsByItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var fixed atomic.Bool
	b.Serve(t, "statement", func(ctx context.Context, chunk *nodetest.Chunk) error {
		if fixed.Load() {
			return nodetest.Echo(ctx, chunk)
		}
		select { // so that it does not come far while a node that is stalled is to see what has failed
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
		for _, item := range chunk.Items() {
			item.Fail("bad", "no such account")
		}
		return nil
	})
	req := nodetest.Request("statement")
	req.Steps[0].Chunk, req.Steps[0].InFlight, req.MaxFailed = 5, 2, "5%"
	id := b.Start(t, req, 4_000)
	b.Await(t, "it is held",
		`SELECT coalesce(hold = 'threshold' AND hold_detail LIKE '%the limit is 200%', false) FROM batchrun`)
	wish := control.Control{Run: id, Actor: "ann"}
	_, err := b.Node.Runs().Resume(t.Context(), wish, nil)
	_ = testenv.As[*workqueue.StateError](t, err, "resume over the limit")
	b.Await(t, "no request is in flight", nothingOut)
	if n := b.Number(t, `SELECT sum(bit_count(failed)) FROM work_block WHERE run_id = $1`, id); n > 2_000 {
		t.Errorf("%d of 4,000 items had failed when the run was held at 200", n)
	}
	fixed.Store(true)
	again := redo.RerunRequest{Run: id, Select: redo.Selection{Failed: true}, Actor: "ann"}
	again.Settings.Chunk = &workqueue.Adaptive{Value: 500}
	testenv.Must(b.Node.Runs().Rerun(t.Context(), again))(t)
	testenv.Must(b.Node.Runs().Resume(t.Context(), wish, nil))(t)
	b.Want(t, id, 2, 4_000, 0)
	b.Check(t)
}
