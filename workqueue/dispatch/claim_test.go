package dispatch_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
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

func TestClaimKeepsTheWantedSize(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(500), 1000)
	req := b.ClaimRequest(run, storetest.Plenty)
	req.MaxBytes = 50 * 66 // an item of two bytes and its envelope
	claimed, err := dispatch.New(b.Store).Claim(t.Context(), req)
	if err != nil || len(claimed.Slices) != 20 || claimed.Slices[0].Mask.Count() != 50 {
		t.Errorf("%d slices, %v; want 20 of 50 items", len(claimed.Slices), err)
	}
	req.MaxBytes = 1 // less than an item: one at a time
	if claimed, err = dispatch.New(b.Store).Claim(t.Context(), req); err != nil || len(claimed.Slices) != 0 {
		t.Errorf("%d slices, %v; want none, all are claimed", len(claimed.Slices), err)
	}
}

func TestClaimObeysTheLimitInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(10)
	req.Steps[0].InFlight = 3
	run := b.Load(req, 100)
	first := b.Claim(run, 2)
	second := b.Claim(run, storetest.Plenty)
	if len(first) != 2 || len(second) != 1 || len(b.Claim(run, storetest.Plenty)) != 0 {
		t.Fatalf("%d and %d slices; want 2 and 1", len(first), len(second))
	}
	b.Send(first...)
	if n := len(b.Claim(run, storetest.Plenty)); n != 0 {
		t.Errorf("%d slices more although three are in flight", n)
	}
	b.Record(storetest.Whole(first[0]))
	if n := len(b.Claim(run, storetest.Plenty)); n != 1 {
		t.Errorf("%d slices after one was recorded; want 1", n)
	}
	b.Check()
}

func TestClaimNeedsALiveSession(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 8)
	expired, ended := b.Open(), b.Open()
	b.Expire(expired)
	if _, err := settle.New(b.Store).EndSession(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	for name, session := range map[string]workqueue.SessionID{
		"expired": expired, "ended": ended, "unknown": workqueue.NewSessionID(),
	} {
		req := b.ClaimRequest(run, 1)
		req.Session = session
		if claimed, err := dispatch.New(b.Store).Claim(t.Context(), req); !errors.Is(err, workqueue.ErrSessionLost) {
			t.Errorf("an %s session got %d slices, %v; want ErrSessionLost", name, len(claimed.Slices), err)
		}
	}
	if err := session.New(b.Store).Heartbeat(t.Context(), expired, storetest.SessionTTL, nil); !errors.Is(err,
		workqueue.ErrSessionLost) {
		t.Errorf("the heartbeat of an expired session: %v; want ErrSessionLost", err)
	}
	b.WantTally(run, storetest.Tally{Ready: 8})
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

// crowd is many claimers over several sessions, with recorders that commit in between.
type crowd struct {
	*bench
	run   workqueue.RunID
	limit int
	work  chan workqueue.Slice
	empty atomic.Int64 // empty claims while work was ready and the limit had room

	mu      sync.Mutex
	claimed []workqueue.Slice
	left    atomic.Int64 // items without an outcome
}

func TestClaimsOfManyNodesShareTheWork(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]int{"wide": 400, "narrow": 5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &crowd{bench: setup(t), limit: limit, work: make(chan workqueue.Slice, 10_000)}
			req := storetest.Chunked(64)
			req.Steps[0].InFlight = limit
			const size = 3 * 8192
			c.run = c.Load(req, size)
			c.left.Store(size)
			c.share(6, 3)
			if n := c.Disjoint(c.claimed); n != size {
				t.Errorf("%d items were claimed of %d", n, size)
			}
			if n := c.empty.Load(); n != 0 {
				t.Errorf("%d claims came back empty although work was ready and the limit had room", n)
			}
			c.WantState(c.run, "completed", 1)
			c.WantCompletions(c.run, 1)
			c.Check()
		})
	}
}

// share runs claimers and recorders until every item has an outcome.
func (c *crowd) share(claimers, recorders int) {
	c.Helper()
	ctx, stop := context.WithTimeout(c.Context(), 3*time.Minute)
	defer stop()
	var wg sync.WaitGroup
	for i := range claimers {
		session := c.Open()
		wg.Go(func() { c.claimer(ctx, session, 1+i%4) })
	}
	for range recorders {
		wg.Go(func() { c.recorder(ctx, stop) })
	}
	wg.Wait()
	if left := c.left.Load(); left != 0 {
		c.Errorf("%d items without an outcome: %s", left, c.Dump(c.run))
	}
}

func (c *crowd) claimer(ctx context.Context, session workqueue.SessionID, most int) {
	for ctx.Err() == nil {
		req := c.ClaimRequest(c.run, most)
		req.Session = session
		out, err := dispatch.New(c.Store).Claim(ctx, req)
		slices := out.Slices
		if errors.Is(err, workqueue.ErrBusy) {
			continue // as a node does: the others hold the step for long on a slow machine
		}
		if err != nil {
			if ctx.Err() == nil {
				c.Errorf("claim: %v", err)
			}
			return
		}
		if len(slices) == 0 {
			c.explainEmpty(ctx)
			continue
		}
		c.mu.Lock()
		c.claimed = append(c.claimed, slices...)
		c.mu.Unlock()
		if live := c.live(ctx); live > c.limit {
			c.Errorf("%d slices are in flight; the limit is %d", live, c.limit)
			return
		}
		for _, s := range slices {
			c.work <- s
		}
	}
}

func (c *crowd) live(ctx context.Context) (n int) {
	err := c.Pool.QueryRow(ctx, `SELECT count(*) FROM work_slice WHERE run_id = $1 AND state IN ('claimed', 'sent')`,
		c.run).Scan(&n)
	if err != nil && ctx.Err() == nil {
		c.Errorf("count slices: %v", err)
	}
	return n
}

// explainEmpty looks under the step's lock, so that no claim is under way, whether an empty claim was right: nobody but
// claimers adds to what is in flight or takes from what is ready, so what is wrong now was wrong then or is the work of
// a recorder since. A claim under the same lock must find what is there.
func (c *crowd) explainEmpty(ctx context.Context) {
	tx, err := c.Pool.Begin(ctx)
	if err != nil {
		return // the test is over
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it has written nothing
	var ready, live int
	err = tx.QueryRow(ctx, `SELECT chunk FROM run_step WHERE run_id = $1 FOR NO KEY UPDATE`, c.run).Scan(new(int))
	if err == nil {
		err = tx.QueryRow(ctx, `SELECT (SELECT sum(bit_count(ready)) FROM work_block WHERE run_id = $1),
			(SELECT count(*) FROM work_slice WHERE run_id = $1 AND state IN ('claimed', 'sent'))`, c.run).Scan(&ready, &live)
	}
	if err != nil {
		return
	}
	// With so wide a limit it cannot have been reached at any moment.
	if ready > 0 && c.limit >= 400 {
		c.empty.Add(1)
		c.Logf("empty claim with %d items ready and %d slices in flight", ready, live)
	}
}

func (c *crowd) recorder(ctx context.Context, stop func()) {
	for {
		var batch []settle.Answer
		select {
		case <-ctx.Done():
			return
		case s := <-c.work:
			batch = append(batch, storetest.Whole(s))
		}
		for more := true; more && len(batch) < 8; {
			select {
			case s := <-c.work:
				batch = append(batch, storetest.Whole(s))
			default:
				more = false
			}
		}
		recorded, err := settle.New(c.Store).Record(context.WithoutCancel(ctx), batch)
		if err != nil {
			c.Errorf("record: %v", err)
			stop()
			return
		}
		for _, v := range recorded.Verdicts {
			if c.left.Add(-int64(v.Taken)) == 0 {
				stop()
			}
		}
	}
}

// With every ready block locked by recorders a claim waits for one of them instead of coming back empty.
func TestClaimWaitsForLockedBlocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(100), 8192)
	tx, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }() // in vain after the commit
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM work_block WHERE run_id = $1 FOR NO KEY UPDATE`, run); err != nil {
		t.Fatal(err)
	}
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
	b.Until("the claim waits for the lock", func() bool {
		return b.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock'`) == 1
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
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
