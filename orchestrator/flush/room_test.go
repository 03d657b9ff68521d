package flush_test

import (
	"context"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/workqueue/collector"
)

// A service that says nothing has many flushes in progress: other collectors are flushed on the same node anyway,
// those with many keys, too.
func TestASilentServiceLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	release := make(chan struct{})
	b.Serve(t, "silent", func(ctx context.Context, chunk *nodetest.Chunk) error {
		select {
		case <-release:
		case <-ctx.Done():
			return ctx.Err()
		}
		return nodetest.Echo(ctx, chunk)
	}, endpoints.Concurrency(128))
	b.Serve(t, "fine", nodetest.Echo, endpoints.Concurrency(4))
	b.gather(t, "silent", func(s *collector.CollectorSpec) {
		s.MinSize, s.InFlight, s.Timeout = 1, 1024, collector.Span(10*time.Minute)
	})
	b.gather(t, "fine", nil)
	b.addOps(t, "silent", 0, 2*collector.NodeFlushes, 2*collector.NodeFlushes)
	b.Await(t, "the silent service is waited for as often as may be", `SELECT count(*) >= 96 FROM collector_key
		WHERE flush IS NOT NULL`)
	b.addOps(t, "fine", 1000, 3*collector.NodeFlushes, 30)
	b.Await(t, "others are flushed", `SELECT NOT EXISTS (SELECT FROM collector_op o JOIN collector c ON c.id = o.collector
		WHERE c.name = 'fine')`)
	b.Await(t, "nothing came of the silent service meanwhile", `SELECT count(*) = 256 FROM collector_op`)
	close(release)
	b.Await(t, "everything is flushed", noOps)
}
