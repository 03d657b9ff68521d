package flush_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/collector"
)

// A service whose handler fails is there: nothing else need come through for its word to count.
func TestAFailureOfTheHandlerCountsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var calls atomic.Int64
	b.Serve(t, "broken", func(context.Context, *nodetest.Chunk) error {
		calls.Add(1)
		return errors.New("no such table")
	})
	b.gather(t, "broken", func(s *collector.CollectorSpec) { s.MinSize, s.MaxAttempts = 1, 3 })
	b.addOps(t, "broken", 0, 1, 1)
	b.Await(t, "it is parked", `SELECT count(*) = 1 FROM collector_op WHERE parked_at IS NOT NULL AND attempts = 3`)
	testenv.Same(t, calls.Load(), 3, "calls for 3 attempts")
}
