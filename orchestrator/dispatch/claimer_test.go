package dispatch_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// crowdedService notes how many chunks it has at once, and how many items of each run it was handed.
type crowdedService struct {
	mu        sync.Mutex
	now, most int
	items     map[workqueue.RunID]int
}

func (s *crowdedService) handle(ctx context.Context, chunk *nodetest.Chunk) error {
	s.enter(workqueue.RunID(chunk.Meta().Run), len(chunk.Items()))
	defer s.leave()
	select {
	case <-time.After(5 * time.Millisecond): // what the work takes
	case <-ctx.Done():
	}
	return nodetest.Echo(ctx, chunk)
}

func (s *crowdedService) enter(run workqueue.RunID, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now++
	s.most = max(s.most, s.now)
	s.items[run] += n
}

func (s *crowdedService) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
}

func (s *crowdedService) handed(run workqueue.RunID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items[run]
}

// peak returns how many chunks the service has had at once.
func (s *crowdedService) peak() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// A small run that starts during a large one has its half of the endpoint's budget, which two nodes keep to.
func TestSmallRunDoesNotWaitForALargeOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.StartNode(t)
	budget := 4
	if _, err := pace.New(b.Store).ChangeEndpoint(t.Context(), pace.EndpointChange{Endpoint: "statement",
		MaxInFlight: &budget}, "ann"); err != nil {
		t.Fatal(err)
	}
	s := &crowdedService{items: map[workqueue.RunID]int{}}
	b.Serve(t, "statement", s.handle, endpoints.Concurrency(16))
	req := nodetest.Request("statement")
	req.Steps[0].Chunk, req.Steps[0].InFlightAuto = 10, true
	const large, small = 20_000, 200
	big := b.Start(t, req, large)
	nodetest.Until(t, "the large run is under way", func() bool { return s.handed(big) >= 400 })
	little := b.Start(t, req, small)
	done, failed := b.Outcome(t, little, 1)
	if done != small || failed != 0 {
		t.Errorf("%d done, %d failed of the small run", done, failed)
	}
	meanwhile := b.Number(t, `SELECT coalesce(sum(bit_count(s.mask)), 0) FROM work_slice s, batchrun r
		WHERE s.run_id = $1 AND r.id = $2 AND s.created_at
			BETWEEN r.sealed_at AND (SELECT max(created_at) FROM work_slice WHERE run_id = r.id)`, big, little)
	// As many as the small one, or twice that with the chunks that were out already and those at both ends.
	if meanwhile > 4*small {
		t.Errorf("the large run went on by %d items while the small one had %d", meanwhile, small)
	}
	if peak := s.peak(); peak > budget {
		t.Errorf("the service had %d chunks at once; the budget is %d", peak, budget)
	}
	if _, err := b.Node.Runs().Cancel(t.Context(), control.Control{Run: big, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	b.Check(t)
}

// A run with a rate is handed out at that rate by itself, without anything that wakes the nodes.
func TestRateIsKeptByANode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Serve(t, "statement", nodetest.Echo)
	req := nodetest.Request("statement")
	req.Steps[0].Rate = 400
	run := b.Start(t, req, 1000)
	if done, failed := b.Outcome(t, run, 1); done != 1000 || failed != 0 {
		t.Errorf("%d done, %d failed", done, failed)
	}
	// The first chunk, of half a second's worth, goes at once, and so the last one half a second early.
	var took float64
	err := b.Pool.QueryRow(t.Context(), `SELECT extract(epoch FROM max(s.created_at) - r.sealed_at)
		FROM batchrun r JOIN work_slice s ON s.run_id = r.id WHERE r.id = $1 GROUP BY r.id`, run).Scan(&took)
	if err != nil || took < 1.9 || took > 60 { // the machine may stand still in between
		t.Errorf("1000 items at 400 a second were claimed in %.2f s (%v)", took, err)
	}
	b.Check(t)
}
