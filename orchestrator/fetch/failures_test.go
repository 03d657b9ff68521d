package fetch_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// What a function depends on is down for a while: its breaker opens, no item loses an attempt, and the run goes on when
// it is up again. Then it says that it has too much to do, which is no one's fault either, and one chunk fails for one
// item in it, which is found by halving.
func TestBreakerThrottlingAndBisection(t *testing.T) {
	t.Parallel()
	var down, busy atomic.Bool
	var refused atomic.Int64
	down.Store(true)
	f := fetch.Func(func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
		switch {
		case down.Load():
			return nil, errors.New("connection refused")
		case busy.Load() && refused.Add(1) <= 20:
			return nil, endpoints.Retry("too_many_requests", "later")
		}
		var slots []fetch.Slot
		for n := range req.Items {
			if req.Items[n].Key == "C42" {
				return nil, endpoints.Fail("bad_document", "it cannot be read")
			}
			part, err := compose(ctx, &req.Items[n])
			if err != nil {
				return nil, err
			}
			slots = append(slots, fetch.Slot{Ordinal: req.Items[n].Ordinal, Data: part.Data})
		}
		return slots, nil
	})
	b := setupLocal(t, map[string]fetch.Fetcher{"fragile": f})
	req := local("fragile")
	req.Steps[0].MaxAttempts = 2
	run := b.Start(t, req, 3000)
	b.Await(t, "the breaker is open",
		`SELECT EXISTS (SELECT FROM endpoint_pace WHERE endpoint = 'local:fragile' AND breaker = 'open')`)
	busy.Store(true)
	down.Store(false)
	if done, failed := b.Outcome(t, run, 1); done != 2999 || failed != 1 {
		t.Errorf("done %d, failed %d; want 2999 and 1", done, failed)
	}
	if got := b.ErrorOf(t, run, "C42"); got != "bad_document: it cannot be read" {
		t.Errorf("C42 failed with %q", got)
	}
	if n := refused.Load(); n <= 20 {
		t.Errorf("it refused %d times", n)
	}
	b.Check(t)
}

// PostgreSQL crashes while results wait to be recorded. They are kept, and recorded when it is back: nothing is done
// again.
func TestResultsOutliveACrashOfPostgreSQL(t *testing.T) {
	t.Parallel()
	cluster := testenv.Postgres(t)
	begun, gate := make(chan struct{}, 100), make(chan struct{})
	var calls atomic.Int64
	b := &bundle{nodetest.SetupOn(t, testenv.Connect(t, cluster.URL()))}
	cfg := nodetest.Config(t)
	cfg.LocalWorkers = 2
	slow := fetch.Each(func(ctx context.Context, item *fetch.Item) (fetch.Part, error) {
		calls.Add(1)
		if item.Ordinal%100 == 0 {
			begun <- struct{}{}
			<-gate
		}
		return compose(ctx, item)
	})
	cfg.Locals = map[string]fetch.Fetcher{"slow": slow}
	node := b.Join(t, b.Store, testenv.Conn(t, b.NS), cfg)
	run := b.Start(t, local("slow"), 1000)
	<-begun
	<-begun
	cluster.Kill(t)
	close(gate)
	nodetest.Until(t, "the node cannot record", func() bool { return node.Stats().RecordedAgain > 0 })
	cluster.Start(t)
	b.Pool.Reset()
	if done, failed := b.Outcome(t, run, 1); done != 1000 || failed != 0 {
		t.Errorf("done %d, failed %d", done, failed)
	}
	if n := calls.Load(); n != 1000 {
		t.Errorf("%d calls for 1000 items", n)
	}
	b.Check(t)
}

// The limit in flight of a step holds for what nodes do themselves, and so does the size of their pool.
func TestLimitsOfLocalSteps(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	f := fetch.Func(func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
		defer now.Add(-1)
		for n := now.Add(1); ; {
			seen := most.Load()
			if n <= seen || most.CompareAndSwap(seen, n) {
				break
			}
		}
		return fetch.Each(compose).Fetch(ctx, req)
	})
	b := setupLocal(t, nil)
	cfg := nodetest.Config(t)
	cfg.LocalWorkers, cfg.Locals = 4, map[string]fetch.Fetcher{"limited": f}
	b.Join(t, b.Store, testenv.Conn(t, b.NS), cfg)
	req := local("limited")
	req.Steps[0].InFlight, req.Steps[0].Chunk = 2, 50
	b.Outcome(t, b.Start(t, req, 3000), 1)
	if n := most.Load(); n > 2 {
		t.Errorf("%d chunks at once, want 2", n)
	}
	req.Steps[0].InFlight = 64
	b.Outcome(t, b.Start(t, req, 3000), 1)
	if n := most.Load(); n > 4 {
		t.Errorf("%d chunks at once in a pool of 4", n)
	}
	b.Check(t)
}

// A suspect has its node for itself until it is recorded. Were the next one to begin before, and end the node, the
// first would be begun and not recorded: it would be taken for what ended it.
func TestASuspectBeginsOnceTheOneBeforeIsRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.suspects(t, "suspected", 2)
	var calls atomic.Int32
	first, goOn, second := make(chan uuid.UUID, 1), make(chan struct{}), make(chan bool, 1)
	compose := fetch.Each(compose)
	cfg := nodetest.Config(t)
	cfg.LocalWorkers = 4
	cfg.Locals = map[string]fetch.Fetcher{"suspected": fetch.Func(
		func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
			if calls.Add(1) == 1 {
				first <- req.Slice
				<-goOn
				return compose.Fetch(ctx, req)
			}
			var open int
			err := b.Pool.QueryRow(ctx, `SELECT count(*) FROM work_slice
				WHERE run_id = $1 AND state = 'claimed' AND id <> $2`, run, req.Slice).Scan(&open)
			if err != nil {
				t.Error(err)
			}
			second <- open == 0
			return compose.Fetch(ctx, req)
		})}
	b.Join(t, b.Store, b.NC, cfg)
	slice := <-first
	release := b.holdSlice(t, slice)
	close(goOn)
	b.Await(t, "the first suspect waits to be recorded", `SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`)
	// The call has come back. Of three times at which the other one is put off from then on, two may have been decided
	// before; the third was not.
	seen := map[time.Time]bool{}
	nodetest.Until(t, "the other suspect is put off again and again", func() bool {
		select {
		case recorded := <-second:
			t.Fatalf("the other suspect has begun; the first was recorded: %t", recorded)
		default:
		}
		var at time.Time
		err := b.Pool.QueryRow(t.Context(), `SELECT not_before FROM work_slice
			WHERE run_id = $1 AND id <> $2 AND error_code = 'postponed'`, run, slice).Scan(&at)
		seen[at] = err == nil
		return len(seen) > 3 // and the time of those that were not found
	})
	release()
	if !<-second {
		t.Error("the other suspect began before the first was recorded")
	}
	if done, failed := b.Outcome(t, run, 1); done != 2 || failed != 0 {
		t.Errorf("done %d, failed %d", done, failed)
	}
	b.Check(t)
}

// suspects makes a run of n chunks of an item, each of which may kill its node.
func (b *bundle) suspects(t *testing.T, function string, n int) workqueue.RunID {
	t.Helper()
	ctx := t.Context()
	req := local(function)
	req.Steps[0].Chunk, req.Steps[0].Timeout = 1, 10*time.Minute
	run := b.Start(t, req, n)
	session, err := session.New(b.Store).StartSession(ctx, session.NodeInfo{Host: "gone", PID: 1, Version: "test"},
		time.Minute)
	testenv.NoError(t, err)
	wanted := dispatch.ClaimRequest{Session: session, Run: run, MaxSlices: n, MaxBytes: 1 << 20}
	claimed, err := dispatch.New(b.Store).Claim(ctx, wanted)
	if err != nil || len(claimed.Slices) != n {
		t.Fatalf("claimed %d slices, %v", len(claimed.Slices), err)
	}
	if handed, err := settle.New(b.Store).EndSession(ctx, session); err != nil || handed != n {
		t.Fatalf("%d slices were handed back, %v", handed, err)
	}
	tag, err := b.Pool.Exec(ctx, `UPDATE work_slice SET suspect = true WHERE run_id = $1 AND state = 'scheduled'`, run)
	if err != nil || tag.RowsAffected() != int64(n) {
		t.Fatalf("%s, %v", tag, err)
	}
	return run
}

// holdSlice locks a slice that was begun alone, until the function that it returns is called.
func (b *bundle) holdSlice(t *testing.T, slice uuid.UUID) (release func()) {
	t.Helper()
	tx, err := b.Pool.Begin(t.Context())
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // it has ended, unless the test failed
	var alone bool
	err = tx.QueryRow(t.Context(), `SELECT delivered_at IS NOT NULL FROM work_slice WHERE id = $1 FOR UPDATE`, slice).
		Scan(&alone)
	if err != nil || !alone {
		t.Fatalf("slice %s was begun alone: %t, %v", slice, alone, err)
	}
	return func() {
		if err := tx.Rollback(t.Context()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(err)
		}
	}
}

// A call goes on no longer than it is of use: when its run is cancelled, or all its items are reset, it ends.
func TestCallsEndWhenTheirItemsAreTakenBack(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan string, 10), make(chan error, 10)
	b := setupLocal(t, map[string]fetch.Fetcher{"slow": fetch.Func(
		func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
			begun <- req.Step
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil, ctx.Err()
		})})
	req := local("slow")
	req.Steps[0].Chunk, req.Steps[0].Timeout = 10, 10*time.Minute
	run := b.Start(t, req, 10)
	<-begun
	_, err := b.Node.Runs().Reset(t.Context(), redo.ResetRequest{Run: run, Actor: "test",
		Select: redo.Selection{All: true}})
	testenv.NoError(t, err)
	wait := func(what string) {
		t.Helper()
		select {
		case err := <-ended:
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: the call ended with %v", what, err)
			}
		case <-time.After(nodetest.Stuck):
			t.Fatalf("%s: the call goes on", what)
		}
	}
	wait("reset")
	<-begun // the same items, in another slice
	testenv.Must(b.Node.Runs().Cancel(t.Context(), control.Control{Run: run, Actor: "test"}))(t)
	wait("cancel")
	b.Check(t)
}

// An operator resets a step while services are at its requests and another node composes. What they answer late is
// taken for nothing; each item is composed of what the new requests brought, and the run completes once.
func TestResetWhileServicesAreAtIt(t *testing.T) {
	t.Parallel()
	const n = 500
	var asked, again atomic.Int64
	late, composed := make(chan struct{}), &sync.Map{}
	compose := fetch.Typed(func(_ context.Context, _ nodetest.Account, item *fetch.Item) (nodetest.Statement, error) {
		var part nodetest.Statement
		_, err := item.DecodePart("accounts", &part)
		composed.Store(item.Key, part.Of)
		return part, err
	})
	b := setupLocal(t, nil)
	cfg := nodetest.Config(t)
	cfg.Locals = map[string]fetch.Fetcher{"compose": compose}
	other := b.Join(t, b.Store, testenv.Conn(t, b.NS), cfg)
	release := sync.OnceFunc(func() { close(late) })
	t.Cleanup(release)
	b.Serve(t, "accounts", func(_ context.Context, chunk *nodetest.Chunk) error {
		of := "new"
		switch {
		case chunk.Meta().Generation > 1:
			if again.Add(1) == 2 {
				release() // the old answers come among the new ones
			}
		case asked.Add(1) == 1: // is done before the reset
			of = "old"
		default:
			<-late
			of = "late"
		}
		for _, item := range chunk.Items() {
			item.Reply(nodetest.Statement{Of: of})
		}
		return nil
	}, endpoints.Concurrency(16))
	req, composing := nodetest.Small("accounts"), local("compose").Steps[0]
	composing.Needs, composing.Inputs = []int{0}, []int{0}
	req.Steps = append(req.Steps, composing)
	run := b.Start(t, req, n)
	nodetest.Until(t, "the service has all, and some is composed", func() bool {
		recorded := b.Number(t, `SELECT count(*) FROM work_result WHERE run_id = $1 AND step = 1`, run)
		sent := b.Number(t, `SELECT count(*) FROM work_slice WHERE run_id = $1 AND step = 0 AND state = 'sent'`, run)
		return asked.Load() >= n/100 && recorded == 100 && sent == n/100-1
	})
	reset, err := b.Node.Runs().Reset(t.Context(), redo.ResetRequest{Run: run, Actor: "test",
		Select: redo.Selection{Step: "accounts", All: true}})
	if err != nil || reset.Items != n || len(reset.Requests) != n/100-1 {
		t.Fatalf("reset %+v, %v; want %d items and the requests that are out", reset, err, n)
	}
	if done, failed := b.Outcome(t, run, 2); done != n || failed != 0 {
		t.Errorf("done %d, failed %d", done, failed)
	}
	nodetest.Until(t, "the late answers have come, too", func() bool {
		return b.Node.Stats().Stale+other.Stats().Stale >= n/100-1
	})
	for key, of := range composed.Range {
		if of != "new" {
			t.Fatalf("%s was composed of %q at last", key, of)
		}
	}
	if counting := b.Number(t, `SELECT count(*) FROM work_result WHERE run_id = $1 AND generation = 2
		AND convert_from(result, 'utf8') = '{"of":"new"}'`, run); counting != 2*n {
		t.Errorf("%d parts of the new generation are right; want %d", counting, 2*n)
	}
	b.Check(t)
}
