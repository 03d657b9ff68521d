package sweep

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// healEvery is the time between two looks for lines that nobody moved on: there should be none, and a look is for all
// runs under way.
const healEvery = 5 * time.Second

// sweepLines sees to the lines of runs whose items go one after the other: what follows an item that failed is ended
// where the plan says so, and lines that nobody moved on are moved on. It returns how many those were.
func (w *Sweeper) sweepLines(ctx context.Context, lease workqueue.Lease) (standing int, err error) {
	ended, err := w.node.Settling.EndStopped(ctx, lease)
	if ended > 0 {
		w.node.Log.Info("ended items of lines that a failure has stopped", zap.Int("items", ended))
	}
	if errors.Is(err, workqueue.ErrNotLeader) {
		return 0, err
	}
	if time.Since(w.healed) < healEvery {
		return 0, err
	}
	w.healed = time.Now()
	standing, failed := redo.New(w.node.Store).HealLines(ctx, lease)
	if standing > 0 {
		w.node.Log.Warn("moved on lines of items that nobody had moved on", zap.Int("lines", standing))
	}
	return standing, errors.Join(err, failed)
}
