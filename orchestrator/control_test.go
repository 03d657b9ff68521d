package orchestrator_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// until polls a number in the database until it is what is wanted.
func (b *bundle) until(t *testing.T, what string, want func(int) bool, sql string, args ...any) (n int) {
	t.Helper()
	for deadline := time.Now().Add(nodetest.Stuck); time.Now().Before(deadline); {
		if err := b.Pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if want(n) {
			return n
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	t.Fatalf("%s: it is %d in the end", what, n)
	return n
}

// A pause holds every node within a second, what is out is recorded, and a resume sets all of them going.
func TestPauseHoldsEveryNode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.StartNode(t)
	l := nodetest.NewLedger(200)
	b.Serve(t, "statement", l.Handle)
	req := nodetest.Request("statement")
	req.Steps[0].Chunk, req.Steps[0].InFlight = 10, 8
	id := b.Start(t, req, 2_000)
	const final = `SELECT sum(bit_count(done | failed)) FROM work_block WHERE run_id = $1`
	l.Await(t)
	b.until(t, "items recorded before the gate", func(n int) bool { return n == 190 }, final, id)
	b.Sent(t, id, 8) // as many as may be out, and no service answers
	paused, err := other.Runs().Pause(t.Context(), control.Control{Run: id, Actor: "ann"})
	if err != nil || paused.Slices != 8 {
		t.Fatalf("paused %+v, %v; want 8 slices out", paused, err)
	}
	close(l.Gate)
	b.until(t, "requests are out", func(n int) bool { return n == 0 },
		`SELECT count(*) FROM work_slice WHERE run_id = $1 AND state IN ('claimed', 'sent')`, id)
	b.until(t, "a second has passed", func(n int) bool { return n == 1 },
		`SELECT (tranche_now() > held_at + interval '1200 ms')::int FROM batchrun WHERE id = $1`, id)
	late := b.until(t, "late claims", func(int) bool { return true }, `SELECT count(*) FROM work_slice s
		JOIN batchrun r ON r.id = s.run_id WHERE r.id = $1 AND s.created_at > r.held_at + interval '1 second'`, id)
	if late > 0 {
		t.Errorf("%d slices were claimed more than a second after the pause", late)
	}
	if n := b.until(t, "items", func(int) bool { return true }, final, id); n == 2_000 {
		t.Error("the run ended before it was paused: the test shows nothing")
	}
	if _, err := b.Node.Runs().Resume(t.Context(), control.Control{Run: id, Actor: "ann"}, nil); err != nil {
		t.Fatal(err)
	}
	if done, failed := b.Outcome(t, id, 1); done != 2_000 || failed != 0 {
		t.Errorf("%d done, %d failed", done, failed)
	}
	b.Check(t)
}

// A run that fails is held by itself long before all of it has failed; fixed and resumed, it completes.
func TestThresholdHoldsByItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var mended atomic.Bool
	b.Serve(t, "statement", func(ctx context.Context, chunk *nodetest.Chunk) error {
		if mended.Load() {
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
	req.Steps[0].Chunk, req.Steps[0].InFlight, req.MaxFailed = 5, 2, "1%"
	id := b.Start(t, req, 20_000)
	b.until(t, "the hold", func(n int) bool { return n == 1 },
		`SELECT count(*) FROM batchrun WHERE id = $1 AND hold = 'threshold' AND hold_detail LIKE '%the limit is 200%'`, id)
	wish := control.Control{Run: id, Actor: "ann"}
	var state *workqueue.StateError
	if _, err := b.Node.Runs().Resume(t.Context(), wish, nil); !errors.As(err, &state) {
		t.Errorf("resume over the limit: %v", err)
	}
	b.until(t, "requests are out", func(n int) bool { return n == 0 },
		`SELECT count(*) FROM work_slice WHERE run_id = $1 AND state IN ('claimed', 'sent')`, id)
	n := b.until(t, "failures", func(int) bool { return true }, `SELECT sum(bit_count(failed)) FROM work_block
		WHERE run_id = $1`, id)
	if n > 10_000 {
		t.Errorf("%d of 20,000 items had failed when the run was held at 200", n)
	}
	t.Logf("%d items had failed", n)
	mended.Store(true)
	again := redo.RerunRequest{Run: id, Select: redo.Selection{Failed: true}, Actor: "ann", Settings: chunked(500)}
	if _, err := b.Node.Runs().Rerun(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Node.Runs().Resume(t.Context(), wish, nil); err != nil {
		t.Fatal(err)
	}
	if done, failed := b.Outcome(t, id, 2); done != 20_000 || failed != 0 {
		t.Errorf("%d done, %d failed", done, failed)
	}
	b.Check(t)
}

// chunked sets another chunk.
func chunked(chunk int) (c control.StepChange) {
	c.Chunk = &workqueue.Adaptive{Value: chunk}
	return c
}
