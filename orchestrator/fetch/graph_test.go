package fetch_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// A node that stops in good order ends what it is at, hands back what it has not begun, and no item is blamed.
func TestStopOfANodeThatFetches(t *testing.T) {
	t.Parallel()
	begun, gate := make(chan struct{}, 1000), make(chan struct{})
	var ended atomic.Int64
	f := fetch.Each(func(ctx context.Context, item *fetch.Item) (fetch.Part, error) {
		if item.Ordinal%100 == 0 {
			begun <- struct{}{}
			<-gate
			ended.Add(1)
		}
		return compose(ctx, item)
	})
	b := setupLocal(t, nil)
	cfg := nodetest.Config(t)
	cfg.Locals, cfg.LocalWorkers = map[string]fetch.Fetcher{"slow": f}, 2
	cfg.Grace = nodetest.Stuck
	leaving := b.Join(t, b.Store, testenv.Conn(t, b.NS), cfg)
	run := b.Start(t, local("slow"), nodetest.Size)
	<-begun
	<-begun
	leaving.Leave()
	close(gate)
	testenv.NoError(t, leaving.Stop())
	if n := ended.Load(); n < 2 || n >= nodetest.Size/100 {
		t.Errorf("%d chunks were worked on, want the 2 that had begun and not all", n)
	}
	var held, blamed int
	err := b.Pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE state = 'claimed'),
		count(*) FILTER (WHERE failures > 0) FROM work_slice WHERE run_id = $1`, run).Scan(&held, &blamed)
	if err != nil || held != 0 || blamed != 0 {
		t.Errorf("%d slices are claimed, %d blamed (%v)", held, blamed, err)
	}
	next := nodetest.Config(t)
	next.Locals = cfg.Locals
	b.Join(t, b.Store, testenv.Conn(t, b.NS), next)
	b.Want(t, run, 1, nodetest.Size, 0)
	b.Check(t)
}

// A step begins with an item as soon as the parts of that item are there. The service answers its first chunk, and all
// others only once something has been composed: a node that waited for more would wait indefinitely.
func TestStepsBeginWithTheFirstPart(t *testing.T) {
	t.Parallel()
	const n = 1000
	composed := make(chan struct{})
	begun := sync.OnceFunc(func() { close(composed) })
	b := setupLocal(t, map[string]fetch.Fetcher{"compose": fetch.Each(
		func(ctx context.Context, item *fetch.Item) (fetch.Part, error) {
			begun()
			return compose(ctx, item)
		})})
	var chunks atomic.Int64
	b.Serve(t, "accounts", func(ctx context.Context, chunk *nodetest.Chunk) error {
		if chunks.Add(1) > 1 {
			select {
			case <-composed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nodetest.Echo(ctx, chunk)
	}, endpoints.Concurrency(1))
	req, composing := nodetest.Small("accounts"), local("compose").Steps[0]
	composing.Needs, composing.Inputs = []int{0}, []int{0}
	req.Steps = append(req.Steps, composing)
	run := b.Start(t, req, n)
	b.Want(t, run, 1, n, 0)
	if asked := chunks.Load(); asked < n/100 {
		t.Errorf("the service was asked for %d chunks; want at least %d", asked, n/100)
	}
	b.Check(t)
}
