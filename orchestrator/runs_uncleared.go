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

func (r *runSet) add(run workqueue.RunID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs == nil {
		r.runs = map[workqueue.RunID]time.Time{}
	}
	r.runs[run] = time.Now()
}

func (r *runSet) remove(run workqueue.RunID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runs, run)
}

func (r *runSet) all() map[workqueue.RunID]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.runs)
}

// settled is how long after a failed load a commit of it may still come through.
const settled = time.Minute

// noteUncleared remembers a failed load of which something may be left. The leader cannot tell it from a load under
// way, because this node's session lives on.
func (r *Runs) noteUncleared(err error) {
	if left, ok := errors.AsType[*workqueue.UnclearedError](err); ok {
		r.uncleared.add(left.Run)
	}
}

// keepClear calls clearUncleared once in a pause.
func (r *Runs) keepClear(ctx context.Context, pause time.Duration) {
	for backoff.Sleep(ctx, pause) == nil {
		r.clearUncleared(ctx)
	}
}

// clearUncleared takes back what failed loads of this node have left, until nothing more can come of them.
func (r *Runs) clearUncleared(ctx context.Context) {
	for run, since := range r.uncleared.all() {
		sealed, err := start.New(r.node.Store).ClearLoad(ctx, run)
		switch {
		case err != nil:
			r.node.Log.Warn("clear a failed load; trying again", zap.Stringer("run", run), zap.Error(err))
		case sealed:
			r.node.Log.Warn("a load that was reported as failed had succeeded; the run is there", zap.Stringer("run", run))
			r.uncleared.remove(run)
		case time.Since(since) > settled:
			r.uncleared.remove(run)
		}
	}
}
