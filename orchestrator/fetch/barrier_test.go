package fetch_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/gather/fetch"
)

// A step with a barrier begins when all items have come so far, and at once then.
func TestBarrierOfANode(t *testing.T) {
	t.Parallel()
	const n = 10_000
	var fetched, early atomic.Int64
	b := setupLocal(t, map[string]fetch.Fetcher{
		"fetch": fetch.Each(func(ctx context.Context, item *fetch.Item) (fetch.Part, error) {
			fetched.Add(1)
			return compose(ctx, item)
		}),
		"sum": fetch.Each(func(ctx context.Context, item *fetch.Item) (fetch.Part, error) {
			if fetched.Load() != n {
				early.Add(1)
			}
			return compose(ctx, item)
		}),
	})
	req, sum := local("fetch"), local("sum").Steps[0]
	sum.Needs, sum.Inputs, sum.Barrier = []int{0}, []int{0}, true
	req.Steps = append(req.Steps, sum)
	run := b.Start(t, req, n)
	if done, failed := b.Outcome(t, run, 1); done != n || failed != 0 {
		t.Errorf("done %d, failed %d", done, failed)
	}
	if early.Load() > 0 {
		t.Errorf("%d items were summed before all had been fetched", early.Load())
	}
	var wait float64
	err := b.Pool.QueryRow(t.Context(), `SELECT extract(epoch FROM
			(SELECT min(created_at) FROM work_slice WHERE run_id = $1 AND step = 1)
			- (SELECT max(ended_at) FROM work_slice WHERE run_id = $1 AND step = 0))`, run).Scan(&wait)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the barrier took %.0f ms", wait*1000)
	b.Check(t)
}
