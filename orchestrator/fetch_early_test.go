package orchestrator_test

import (
	"context"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
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
	chunks := 0 // one at a time
	b.serve(t, "accounts", func(ctx context.Context, chunk *endpoints.Chunk[account, statement]) error {
		if chunks++; chunks > 1 {
			select {
			case <-composed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return echo(ctx, chunk)
	}, endpoints.Concurrency(1))
	req, composing := small("accounts"), local("compose").Steps[0]
	composing.Needs, composing.Inputs = []int{0}, []int{0}
	req.Steps = append(req.Steps, composing)
	run := b.start(t, req, n)
	if done, failed := b.outcome(t, run, 1); done != n || failed != 0 {
		t.Errorf("done %d, failed %d", done, failed)
	}
	if chunks < n/100 {
		t.Errorf("the service was asked for %d chunks; want at least %d", chunks, n/100)
	}
	b.check(t)
}
