package orchestrator

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/results"
	"github.com/tranchehq/tranche/workqueue/start"
)

// dutyClear takes back loads whose node is gone, and what has come of large results that nobody will record. It is a
// duty of its own, since gigabytes take minutes.
const dutyClear = "clear"

// clearing is that duty, at every beat of the lease.
func (w *sweeper) clearing(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
	cleared, err := start.New(w.node.store).ClearAbandonedLoads(ctx, lease)
	if len(cleared) > 0 {
		w.node.log.Info("took back loads whose node is gone", zap.Int("loads", len(cleared)))
	}
	swept, failed := results.New(w.node.store).Sweep(ctx, lease)
	if swept > 0 {
		w.node.log.Info("deleted what had come of results that nobody will record", zap.Int("results", swept))
	}
	return 0, errors.Join(err, failed)
}
