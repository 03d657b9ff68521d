package orchestrator

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// dutyClear takes back loads whose node is gone. It is a duty of its own, since gigabytes of payloads take minutes.
const dutyClear = "clear"

// clearing is that duty, at every beat of the lease.
func (n *Node) clearing(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
	cleared, err := start.New(n.store).ClearAbandonedLoads(ctx, lease)
	if len(cleared) > 0 {
		n.log.Info("took back loads whose node is gone", zap.Int("loads", len(cleared)))
	}
	return 0, err
}
