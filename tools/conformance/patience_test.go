package conformance

import (
	"context"
	"time"
)

const (
	// slower is how many times longer than people tests wait: the machine has much else to do.
	slower = 3
	tick   = 50 * time.Millisecond
)

// patiently returns a context that ends when this process has run for longer than a limit. While it stood still, the
// service and the server did so too, most likely: such a time counts as no more than two ticks. It has a deadline far
// beyond that, since questions to JetStream have one of their own without.
func patiently(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	limit *= slower
	ctx, cancel := context.WithTimeout(ctx, limit+5*time.Minute)
	go func() {
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for left, last := limit, time.Now(); left > 0; {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			now := time.Now()
			left, last = left-min(now.Sub(last), 2*tick), now
		}
		cancel()
	}()
	return ctx, cancel
}
