// Package control says how runs go on, and tells the nodes.
package control

import (
	"context"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/orchestrator/internal/request"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
)

// Controls says how runs go on.
type Controls struct{ node *kernel.Kernel }

// New returns what changes runs for people.
func New(k *kernel.Kernel) *Controls { return &Controls{k} }

// Pause holds runs, on every node at once. See [control.Store.Pause].
func (c *Controls) Pause(ctx context.Context, by control.Control) (control.Controlled, error) {
	paused, err := control.New(c.node.Store).Pause(ctx, by)
	if err == nil {
		c.node.Spread()
	}
	return paused, err
}

// Resume ends holds. See [control.Store.Resume].
func (c *Controls) Resume(ctx context.Context, by control.Control, maxFailed *string) (control.Controlled, error) {
	resumed, err := control.New(c.node.Store).Resume(ctx, by, maxFailed)
	if err == nil {
		c.Recheck(ctx, resumed.Runs)
		c.node.Spread()
	}
	return resumed, err
}

// Approve lets all items of runs go that wait for it, or a step begin. See [control.Store.Approve].
func (c *Controls) Approve(ctx context.Context, by control.Control) (control.Controlled, error) {
	approved, err := control.New(c.node.Store).Approve(ctx, by)
	if len(approved.Runs) > 0 {
		c.node.Spread()
	}
	return approved, err
}

// SetRun changes settings of a run. See [control.Store.SetRun].
func (c *Controls) SetRun(ctx context.Context, change control.RunChange) (control.RunChanged, error) {
	changed, err := control.New(c.node.Store).SetRun(ctx, change)
	if err == nil {
		c.Recheck(ctx, []workqueue.RunID{change.Run})
		c.node.Spread()
	}
	return changed, err
}

// Cancel stops runs and takes their requests out of the stream. See [control.Store.Cancel].
func (c *Controls) Cancel(ctx context.Context, by control.Control) (control.Cancelled, error) {
	cancelled, err := control.New(c.node.Store).Cancel(ctx, by)
	if len(cancelled.Runs) > 0 {
		request.Remove(ctx, c.node, cancelled.Requests)
		c.node.Spread()
	}
	return cancelled, err
}

// maxRechecked bounds the runs that are looked at in one go; the leader sees to any others within a second.
const maxRechecked = 100

// Recheck acts on what became due while runs were held, or with their new settings.
func (c *Controls) Recheck(ctx context.Context, runs []workqueue.RunID) {
	for _, run := range runs[:min(len(runs), maxRechecked)] {
		_, err := control.New(c.node.Store).CheckThreshold(ctx, run)
		if err == nil {
			_, err = control.New(c.node.Store).CheckGuard(ctx, run)
		}
		if err == nil {
			_, err = control.New(c.node.Store).CheckCanary(ctx, run)
		}
		if err != nil {
			c.node.Log.Debug("check a run that changed; the leader will see to it", zap.Error(err))
			return
		}
	}
}
