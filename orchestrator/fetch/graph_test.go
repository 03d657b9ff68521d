package fetch_test

import (
	"context"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// gathered is a plan that gathers from two services, one of them optional, and composes on the nodes.
func gathered() start.LoadRequest {
	req := nodetest.Small("accounts")
	step := req.Steps[0]
	step.RetryBackoff = time.Millisecond
	accounts, prices, composed := step, step, step
	accounts.Name, accounts.Kind = "accounts", workqueue.KindDirect
	prices.Name, prices.Endpoint, prices.Optional = "prices", "prices", true
	composed.Name, composed.Kind, composed.Endpoint = "compose", workqueue.KindLocal, "local:compose"
	composed.Needs, composed.Inputs = []int{0, 1}, []int{0, 1}
	req.Plan, req.Steps = "gathered", []workqueue.StepSpec{accounts, prices, composed}
	return req
}

// composer composes of parts, and counts how often it does for an item.
type composer struct {
	mu    sync.Mutex
	calls map[string]int
	bad   atomic.Int64 // items that came without what they need
}

func (c *composer) fetcher() fetch.Fetcher {
	return fetch.Typed(func(_ context.Context, in nodetest.Account, item *fetch.Item) (map[string]string, error) {
		c.mu.Lock()
		c.calls[item.Key]++
		c.mu.Unlock()
		var of nodetest.Statement
		there, err := item.DecodePart("accounts", &of)
		if err != nil || !there || of.Of != item.Key || in.ID != item.Key {
			c.bad.Add(1)
		}
		price := "none"
		if part, there := item.Parts["prices"]; there {
			price = string(part.Data)
		}
		return map[string]string{"of": of.Of, "price": price}, err
	})
}

// composed returns how often each item was composed.
func (c *composer) composed() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}

// Two nodes compose what two services gave. Each item is composed once, from its parts; without the optional part when
// there is none, and not at all when a part that it needs has failed.
func TestTwoNodesCompose(t *testing.T) {
	t.Parallel()
	c := &composer{calls: map[string]int{}}
	b := &bundle{nodetest.ServersOnly(t)}
	other := b.joinTwo(t, "compose", c.fetcher())
	b.Serve(t, "accounts", func(_ context.Context, chunk *nodetest.Chunk) error {
		for _, item := range chunk.Items() {
			if item.In.ID == "C7" || item.In.ID == "C2000" {
				item.Fail("unknown", "no such account")
				continue
			}
			item.Reply(nodetest.Statement{Of: item.In.ID})
		}
		return nil
	})
	b.Serve(t, "prices", func(_ context.Context, chunk *nodetest.Chunk) error {
		for _, item := range chunk.Items() {
			if strings.HasSuffix(item.In.ID, "9") {
				item.Fail("no_price", "there is none")
				continue
			}
			item.Reply(nodetest.Statement{Of: "1"})
		}
		return nil
	})
	const n = 3_000
	req := gathered()
	req.Steps[2].Timeout = 10 * time.Minute // also of the chunks that wait for the other node
	run := b.Start(t, req, n)
	b.Want(t, run, 1, n-2, 2)
	calls := c.composed()
	if len(calls) != n-2 || c.bad.Load() > 0 || calls["C7"] > 0 {
		t.Errorf("%d items were composed, %d without their parts, C7 %d times", len(calls), c.bad.Load(), calls["C7"])
	}
	for key, times := range calls {
		if times != 1 {
			t.Fatalf("%s was composed %d times", key, times)
		}
	}
	var right, bare int
	err := b.Pool.QueryRow(t.Context(), `
		SELECT count(*) FILTER (WHERE r->>'of' = item_key), count(*) FILTER (WHERE r->>'price' = 'none')
		FROM (SELECT convert_from(result, 'utf8')::json AS r, run_id, ordinal FROM work_result
			WHERE run_id = $1 AND step = 2) p
		JOIN work_queue q USING (run_id, ordinal)`, run).Scan(&right, &bare)
	if err != nil || right != n-2 || bare != n/10 {
		t.Errorf("%d results are right, %d without a price (%v)", right, bare, err)
	}
	if a, o := b.Node.Stats().Fetches, other.Stats().Fetches; a == 0 || o == 0 {
		t.Errorf("the nodes worked on %d and %d chunks", a, o)
	}
	b.Check(t)
}

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
