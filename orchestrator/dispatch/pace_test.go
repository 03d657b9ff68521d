package dispatch_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/start"
)

// paced is a run that leaves its pace to the nodes.
func paced(endpoint string) start.LoadRequest {
	req := nodetest.Request(endpoint)
	step := &req.Steps[0]
	step.InFlightAuto, step.InFlight, step.MaxAttempts = true, 1024, 50
	return req
}

// paceOf returns what is stored about the pace of an endpoint, and the reasons of its changes, oldest first.
func (b *bundle) paceOf(t *testing.T, endpoint string) (inFlight int, rate float64, chunk int, changes []string) {
	t.Helper()
	err := b.Pool.QueryRow(t.Context(), `
		SELECT in_flight, coalesce(rate, 0), coalesce(chunk, 0),
		       (SELECT coalesce(array_agg(format('%s %s → %s: %s', what, before, after, reason) ORDER BY id), '{}')
		        FROM endpoint_change c WHERE c.endpoint = p.endpoint)
		FROM endpoint_pace p WHERE endpoint = $1`, endpoint).Scan(&inFlight, &rate, &chunk, &changes)
	if err != nil {
		t.Fatal(err)
	}
	return inFlight, rate, chunk, changes
}

// napping answers every item, after a while.
func napping(nap func(items int) time.Duration) func(context.Context, *nodetest.Chunk) error {
	return func(ctx context.Context, chunk *nodetest.Chunk) error {
		select {
		case <-time.After(nap(len(chunk.Items()))):
		case <-ctx.Done():
			return ctx.Err()
		}
		return nodetest.Echo(ctx, chunk)
	}
}

func TestTheQueueInFrontOfASlowServiceIsKeptShort(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Serve(t, "slow", napping(func(int) time.Duration { return 200 * time.Millisecond }), endpoints.Concurrency(2))
	req := paced("slow")
	req.Steps[0].Chunk = 20
	run := b.Start(t, req, 2000) // ten seconds of work, of which 16 requests are more than a second
	if done, failed := b.Outcome(t, run, 1); done != 2000 || failed != 0 {
		t.Fatalf("done %d, failed %d", done, failed)
	}
	inFlight, rate, _, changes := b.paceOf(t, "slow")
	if inFlight > 20 || rate != 0 {
		t.Errorf("%d in flight, rate %.0f: %s", inFlight, rate, strings.Join(changes, "; "))
	}
	// What the service says of itself may be heard before the queue is seen to be long. On a machine that stood still
	// the queue is cut for another good reason.
	reasons := []string{"services say that they work on 2", "in the queue", "no request was answered"}
	if len(changes) == 0 || !slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(changes[0], r) }) {
		t.Errorf("changes %q", changes)
	}
	b.Check(t)
}

func TestTheRateOfAServiceThatRefusesIsLearned(t *testing.T) {
	t.Parallel()
	b := setup(t)
	limited := &allowance{rate: 60, at: time.Now()} // far less than the slowest machine can send
	b.Serve(t, "limited", func(_ context.Context, chunk *nodetest.Chunk) error {
		for _, item := range chunk.Items() {
			if limited.take() {
				item.Reply(nodetest.Statement{Of: item.In.ID})
			} else {
				item.Retry("too_many_requests", "slow down")
			}
		}
		return nil
	})
	req := paced("limited")
	req.Steps[0].Chunk, req.Steps[0].RetryBackoff = 20, 200*time.Millisecond
	begun := time.Now()
	run := b.Start(t, req, 600) // ten seconds of what it allows
	if done, failed := b.Outcome(t, run, 1); done != 600 || failed != 0 {
		t.Fatalf("done %d, failed %d", done, failed)
	}
	through := 600 / time.Since(begun).Seconds() // fewer than 60, as nobody asks it on a machine that stands still
	_, rate, _, changes := b.paceOf(t, "limited")
	if rate < through/2 || rate > 120 {
		t.Errorf("rate %.0f; 60 are allowed: %s", rate, strings.Join(changes, "; "))
	}
	b.Check(t)
}

// allowance is what a service lets through.
type allowance struct {
	mu    sync.Mutex
	rate  float64
	saved float64
	at    time.Time
}

func (a *allowance) take() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.saved = min(a.rate/4, a.saved+now.Sub(a.at).Seconds()*a.rate)
	a.at = now
	if a.saved < 1 {
		return false
	}
	a.saved--
	return true
}

// Not parallel: what the controller goes by is how long requests take, and other tests of the package would be in it.
//
//nolint:paralleltest // see above
func TestChunksGrowWhereRequestsCostMoreThanItems(t *testing.T) {
	b := setup(t)
	b.Serve(t, "dear", napping(func(n int) time.Duration {
		return 100*time.Millisecond + time.Duration(n)*20*time.Microsecond
	}), endpoints.Concurrency(4))
	req := paced("dear")
	req.Steps[0].Chunk, req.Steps[0].ChunkAuto = 8192, true
	run := b.Start(t, req, 300_000) // more than it should need to learn
	var chunk int
	nodetest.Until(t, "the chunk has grown", func() bool {
		_, _, chunk, _ = b.paceOf(t, "dear")
		return chunk >= 1000
	})
	if _, err := b.Node.Runs().Cancel(t.Context(), control.Control{Run: run, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	_, _, chunk, _ = b.paceOf(t, "dear")
	// The next run begins there.
	var first int
	run = b.Start(t, req, 8192)
	b.Outcome(t, run, 1)
	err := b.Pool.QueryRow(t.Context(), `SELECT bit_count(mask) FROM work_slice WHERE run_id = $1
		ORDER BY created_at, block LIMIT 1`, run).Scan(&first)
	if err != nil || first < chunk/2 {
		t.Errorf("the first chunk of the next run has %d items, %v; %d had been learned", first, err, chunk)
	}
	b.Check(t)
}

func TestFixedPacesAreLeftAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Serve(t, "fixed", napping(func(int) time.Duration { return 100 * time.Millisecond }), endpoints.Concurrency(1))
	req := nodetest.Request("fixed")
	req.Steps[0].Chunk, req.Steps[0].InFlight = 10, 64
	b.Outcome(t, b.Start(t, req, 300), 1)
	inFlight, rate, chunk, changes := b.paceOf(t, "fixed")
	if fmt.Sprint(inFlight, rate, chunk, len(changes)) != "16 0 0 0" {
		t.Errorf("%d in flight, rate %.0f, chunk %d, %q", inFlight, rate, chunk, changes)
	}
}
