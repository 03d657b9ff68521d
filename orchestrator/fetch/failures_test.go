package fetch_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
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
