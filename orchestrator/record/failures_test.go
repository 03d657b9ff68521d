package record_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// timeout is that of a request that gets lost: it holds its items for so long.
const timeout = 4 * time.Minute

// A service that is down for a while loses no item, and takes an attempt from few; the run goes on by itself. It may
// fail chunks, or ask for every item to be tried again.
func TestOutageIsWaitedOut(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*nodetest.Chunk) error{
		"chunks fail": func(*nodetest.Chunk) error {
			return errors.New("no connection to the ledger")
		},
		"every item is to be tried again": func(chunk *nodetest.Chunk) error {
			for _, item := range chunk.Items() {
				item.Retry("unavailable", "no connection to the ledger")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			const items, outage = 3000, 4 * time.Second
			var worked atomic.Int32
			var over atomic.Bool
			b.Serve(t, "statement", func(ctx context.Context, chunk *nodetest.Chunk) error {
				if worked.Add(1) >= 20 && !over.Load() {
					return fail(chunk)
				}
				return nodetest.Echo(ctx, chunk)
			})
			req := nodetest.Request("statement")
			req.Steps[0].Chunk, req.Steps[0].MaxAttempts = 50, 2
			// Of a shorter one it depends on luck whether five places fail before the first of them fails again.
			req.Steps[0].RetryBackoff = 10 * time.Second
			req.Steps[0].Timeout = timeout
			watch := testenv.NewWatch(t)
			id := b.Start(t, req, items)
			nodetest.Until(t, "the breaker is open", func() bool {
				return b.Number(t, `SELECT count(*) FROM endpoint_pace WHERE breaker = 'open'`) > 0
			})
			<-watch.After(outage)
			over.Store(true)
			if done, failed := b.Outcome(t, id, 1); done != items || failed != 0 {
				t.Errorf("done %d, failed %d; want all %d done", done, failed, items)
			}
			lost := b.Number(t, `SELECT coalesce(max(failures), 0) FROM work_slice WHERE run_id = $1`, id)
			chunks := b.Number(t, `SELECT count(*) FROM work_slice WHERE run_id = $1 AND cause IN ('failure', 'retry')`, id)
			if lost > 1 || chunks > 20 {
				t.Errorf("%d attempts were lost, by %d chunks", lost, chunks)
			}
			if took := watch.Ran(); took > timeout/2 {
				t.Errorf("the run took %s", took)
			}
			if n := b.Number(t, `SELECT count(*) FROM endpoint_change WHERE what = 'breaker'`); n < 2 {
				t.Errorf("the breaker changed %d times; want it to open and to close", n)
			}
			rest := b.Number(t, `SELECT coalesce(extract(epoch FROM max(r.finished_at) - max(c.at)), 0)::int
				FROM batchrun r, endpoint_change c WHERE r.id = $1 AND c.what = 'breaker' AND c.after = 'closed'`, id)
			if rest > 90 { // what comes again after its pause, and not what waits for a time limit
				t.Errorf("the run went on for %d s once the breaker had closed", rest)
			}
			b.Check(t)
		})
	}
}

// One poison item in each of ten chunks, while everything goes through a real service: ten items fail, in few slices,
// and nothing waits for long.
func TestPoisonInEveryChunk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const items, chunk = 5000, 500
	var poison []string
	for i := range items / chunk {
		poison = append(poison, "C"+strconv.Itoa(i*chunk+77+i))
	}
	b.Serve(t, "statement", func(ctx context.Context, c *nodetest.Chunk) error {
		for _, item := range c.Items() {
			if slices.Contains(poison, item.In.ID) {
				return errors.New("poison")
			}
		}
		return nodetest.Echo(ctx, c)
	})
	req := nodetest.Request("statement")
	req.Steps[0].Timeout = timeout
	watch := testenv.NewWatch(t)
	id := b.Start(t, req, items)
	if done, failed := b.Outcome(t, id, 1); done != items-10 || failed != 10 {
		t.Errorf("done %d, failed %d; want 10 failed", done, failed)
	}
	if took := watch.Ran(); took > timeout/2 {
		t.Errorf("it took %s", took)
	}
	n := b.Number(t, `SELECT count(*) FROM work_slice WHERE run_id = $1`, id)
	probes := b.Number(t, `SELECT count(*) FROM work_slice WHERE run_id = $1 AND cause = 'probe'`, id)
	if limit := 10 + 10*(3+2*9) + 2*probes; n > limit {
		t.Errorf("%d slices, %d probes; want at most %d slices", n, probes, limit)
	}
	t.Logf("%d slices, %d probes, %s", n, probes, watch.Ran())
	found, err := pace.ReadBisections(t.Context(), b.Store.Pool, id, 100)
	if err != nil || found.Culprits != 10 || found.Kinds[pace.KindBadEntity] != 10 {
		t.Errorf("%+v, %v", found, err)
	}
	b.Check(t)
}
