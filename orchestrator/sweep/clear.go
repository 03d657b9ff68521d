package sweep

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Clearing is that duty, at every beat of the lease.
func (w *Sweeper) Clearing(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
	cleared, err := start.New(w.node.Store).ClearAbandonedLoads(ctx, lease)
	if len(cleared) > 0 {
		w.node.Log.Info("took back loads whose node is gone", zap.Int("loads", len(cleared)))
	}
	swept, failed := export.New(w.node.Store).Sweep(ctx, lease)
	if swept > 0 {
		w.node.Log.Info("deleted what had come of results that nobody will record", zap.Int("results", swept))
	}
	return 0, errors.Join(err, failed)
}
