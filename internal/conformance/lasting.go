package conformance

import (
	"context"
	"time"
)

// lastingTick is how exactly the time is measured that a lasting context has.
const lastingTick = 50 * time.Millisecond

// lasting returns a context that ends when this process has run for so long. While it stood still, the service and the
// server did so too, most likely, and could do nothing: such a time counts as no more than two ticks.
func lasting(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		ticker := time.NewTicker(lastingTick)
		defer ticker.Stop()
		for left, last := limit, time.Now(); left > 0; {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			now := time.Now()
			left, last = left-min(now.Sub(last), 2*lastingTick), now
		}
		cancel()
	}()
	return ctx, cancel
}

// times is how long something may take that takes others d at the most.
func (n *node) times(d time.Duration) time.Duration {
	return d * time.Duration(max(1, n.config.slower))
}
