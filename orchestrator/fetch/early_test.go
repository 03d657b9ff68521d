package fetch_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
)

// A step begins with an item as soon as the parts of that item are there. The service answers its first chunk, and all
// others only once something has been composed: a node that waited for more would wait for ever.
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
	if done, failed := b.Outcome(t, run, 1); done != n || failed != 0 {
		t.Errorf("done %d, failed %d", done, failed)
	}
	if asked := chunks.Load(); asked < n/100 {
		t.Errorf("the service was asked for %d chunks; want at least %d", asked, n/100)
	}
	b.Check(t)
}

// Steps that do not need each other run at once: of each one request may be out, and none is answered before the other
// service has one, too.
func TestIndependentStepsRunAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := nodetest.Small("accounts")
	req.Steps[0].InFlight, req.Steps[0].Timeout = 1, 10*time.Minute
	other := req.Steps[0]
	other.Name, other.Endpoint = "prices", "prices"
	req.Steps = append(req.Steps, other)
	both := map[string]chan struct{}{"accounts": make(chan struct{}), "prices": make(chan struct{})}
	for name, mine := range both {
		asked := sync.OnceFunc(func() { close(mine) })
		b.Serve(t, name, func(ctx context.Context, chunk *nodetest.Chunk) error {
			asked()
			for _, begun := range both {
				select {
				case <-begun:
				case <-time.After(time.Minute):
					return endpoints.Fail("alone", "the other service is not asked")
				}
			}
			return nodetest.Echo(ctx, chunk)
		})
	}
	run := b.Start(t, req, 300)
	if done, failed := b.Outcome(t, run, 1); done != 300 || failed != 0 {
		t.Errorf("done %d, failed %d", done, failed)
	}
	b.Check(t)
}
