package dispatch

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// reachWait is how long a server that has left a publication unanswered has for its sign of life, before more is
// claimed.
const reachWait = time.Second

// reach is whether the NATS server is known to hear this node. A connection that stalls counts as connected until
// nats.go's own pings are missed, minutes with its usual settings; what is claimed meanwhile would fail here, again and
// again, instead of being published by a node that can.
type reach struct{ doubted atomic.Bool }

// doubt takes that a publication was not answered.
func (r *reach) doubt() { r.doubted.Store(true) }

// reachable reports whether the node may claim what it is to publish.
func (d *Dispatcher) reachable(ctx context.Context) bool {
	if !d.node.NC.IsConnected() {
		return false
	}
	if !d.reach.doubted.Load() {
		return true
	}
	asking, cancel := context.WithTimeout(ctx, reachWait)
	defer cancel()
	if err := d.node.NC.FlushWithContext(asking); err != nil {
		d.node.Stats.Unreachable.Add(1)
		d.node.Log.Debug("the NATS server gives no sign of life; nothing is claimed", zap.Error(err))
		return false
	}
	d.reach.doubted.Store(false)
	return true
}
