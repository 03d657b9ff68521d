package orchestrator

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// runSet holds runs that are to be looked after.
type runSet struct {
	mu   sync.Mutex
	runs map[workqueue.RunID]time.Time // when each came in
}

func (s *runSet) add(run workqueue.RunID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs == nil {
		s.runs = map[workqueue.RunID]time.Time{}
	}
	s.runs[run] = time.Now()
}

func (s *runSet) remove(run workqueue.RunID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, run)
}

func (s *runSet) all() map[workqueue.RunID]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.runs)
}

// settled is how long after a failed load a commit of it may still come through.
const settled = time.Minute

// noteUncleared remembers a failed load of which something may be left. The leader cannot tell it from a load under
// way, because this node's session lives on.
func (n *Node) noteUncleared(err error) {
	if left, ok := errors.AsType[*workqueue.UnclearedError](err); ok {
		n.uncleared.add(left.Run)
	}
}

// keepClear calls clearUncleared once in a beat of the lease.
func (n *Node) keepClear(ctx context.Context) {
	for backoff.Sleep(ctx, n.cfg.beatOfLease()) == nil {
		n.clearUncleared(ctx)
	}
}

// clearUncleared takes back what failed loads of this node have left, until nothing more can come of them.
func (n *Node) clearUncleared(ctx context.Context) {
	for run, since := range n.uncleared.all() {
		sealed, err := start.New(n.store).ClearLoad(ctx, run)
		switch {
		case err != nil:
			n.log.Warn("clear a failed load; trying again", zap.Stringer("run", run), zap.Error(err))
		case sealed:
			n.log.Warn("a load that was reported as failed had succeeded; the run is there", zap.Stringer("run", run))
			n.uncleared.remove(run)
		case time.Since(since) > settled:
			n.uncleared.remove(run)
		}
	}
}
