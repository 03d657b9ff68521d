package client

import (
	"context"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
)

// How often a run is looked at that is waited for.
const (
	waitFirst = 50 * time.Millisecond
	waitMost  = 2 * time.Second // doubled until then
)

// States of a run.
const (
	RunLoading   = "loading"
	RunRunning   = "running"
	RunPaused    = "paused"
	RunCompleted = "completed"
	RunCancelled = "cancelled"
)

// Ended reports whether nothing more happens to a run by itself.
func (r *RunDocument) Ended() bool { return r.State == RunCompleted || r.State == RunCancelled }

// Wait looks at a run until it has ended: all its items have an outcome, or it was cancelled. A run that is paused has
// not; whoever does not want to wait for an operator gives a context with an end.
func (c *Client) Wait(ctx context.Context, run string, options ...CallOption) (RunDocument, error) {
	pauses := backoff.Exponential{First: waitFirst, Longest: waitMost}
	for {
		found, err := c.GetRun(ctx, run, options...)
		if err != nil || found.Ended() {
			return found, err
		}
		if err := pauses.Wait(ctx); err != nil {
			return found, err
		}
	}
}
