package client

import (
	"context"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
)

// Pauses between polls of a run in Wait.
const (
	waitFirst = 50 * time.Millisecond
	waitMost  = 2 * time.Second // doubled up to this
)

// States of a run.
const (
	RunLoading   = "loading"
	RunRunning   = "running"
	RunPaused    = "paused"
	RunCompleted = "completed"
	RunCancelled = "cancelled"
)

// Ended reports whether the run is completed or cancelled.
func (r *RunDocument) Ended() bool { return r.State == RunCompleted || r.State == RunCancelled }

// Wait polls a run until it is completed or cancelled. A paused run is neither: to limit the wait for an operator,
// pass a context with a deadline.
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
