package dispatch_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

func TestClaimCutsEvenly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(500), 4*455)
	claimed := b.Claim(run, storetest.Plenty)
	for _, s := range claimed {
		if s.Mask.Count() != 455 || s.Attempt != 1 || s.Cause != workqueue.CauseReady || s.Generation != 1 {
			t.Errorf("a slice of %d items, %+v; want 455", s.Mask.Count(), s.Cause)
		}
	}
	if len(claimed) != 4 || b.Disjoint(claimed) != 4*455 {
		t.Errorf("%d slices; want 4", len(claimed))
	}
	b.Check()
}

func TestClaimTakesScheduledSlicesWhenTheyAreDue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Request()
	req.Steps[0].RetryBackoff = time.Hour
	run := b.Load(req, 8)
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "flaky", Message: "again", Retry: true}))
	rest := b.One(run)
	if rest.Cause != workqueue.CauseReady || len(b.Claim(run, storetest.Plenty)) != 0 {
		t.Fatalf("a slice was handed out before its time: %s", b.Dump(run))
	}
	b.Record(storetest.Whole(rest))
	if found, err := dispatch.New(b.Store).RunnableSteps(t.Context(), dispatch.Search{}); err != nil ||
		len(found.Steps) != 0 {
		t.Errorf("runnable %v, %v although nothing is due", found.Steps, err)
	}
	b.Exec(`UPDATE work_slice SET not_before = tranche_now() WHERE state = 'scheduled'`)
	retry := b.One(run)
	if retry.Cause != workqueue.CauseRetry || retry.Attempt != 2 {
		t.Errorf("the slice that was due is %+v", retry)
	}
	b.Record(storetest.Whole(retry))
	b.WantState(run, "completed", 1)
	b.Check()
}

// With every ready block locked by recorders a claim waits for one of them instead of coming back empty.
func TestClaimWaitsForLockedBlocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(100), 8192)
	release := b.HoldRows(`SELECT 1 FROM work_block WHERE run_id = $1 FOR NO KEY UPDATE`, run)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	got := make(chan int, 1)
	go func() {
		claimed, err := dispatch.New(b.Store).Claim(ctx, b.ClaimRequest(run, 5))
		for errors.Is(err, workqueue.ErrBusy) { // as a node does: the commit comes late on a slow machine
			claimed, err = dispatch.New(b.Store).Claim(ctx, b.ClaimRequest(run, 5))
		}
		if err != nil {
			t.Error(err)
		}
		got <- len(claimed.Slices)
	}()
	b.Until("the claim waits for the lock", func() bool { return b.Waiters() == 1 })
	release()
	if n := <-got; n != 5 {
		t.Errorf("the claim brought %d slices; want 5", n)
	}
	b.Check()
}

// Chunks are of the size that was learned, as far as the step allows, and never above a cap while it holds.
func TestSizeOfAutomaticChunks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(8192)
	req.Steps[0].ChunkAuto = true
	for _, c := range []struct {
		set  string
		want int
	}{
		{`SET changed_at = tranche_now()`, workqueue.DefaultAutoChunk},
		{`SET chunk = 64`, 64},
		{`SET chunk_cap = 16, chunk_cap_until = tranche_now() + interval '1 hour'`, 16},
		{`SET chunk_cap_until = tranche_now()`, 64},
		{`SET chunk = 8000`, 8000},
	} {
		run := b.Load(req, 8000)
		b.Exec(`UPDATE endpoint_pace ` + c.set)
		if n := itemsOf(b.Claim(run, 1)); n != c.want {
			t.Errorf("%s: a chunk of %d items; want %d", c.set, n, c.want)
		}
	}
	req.Steps[0].ChunkBytes = 66 * 20 // twenty items of two bytes and their envelopes
	if n := itemsOf(b.Claim(b.Load(req, 8000), 1)); n != 20 {
		t.Errorf("a chunk of %d items; want as many as the bytes take", n)
	}
}
