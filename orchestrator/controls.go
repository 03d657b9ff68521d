package orchestrator

import (
	"context"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
)

// controls says how runs go on.
type controls struct{ node *kernel }

func newControls(k *kernel) *controls { return &controls{k} }

// Pause holds runs, on every node at once. See [control.Store.Pause].
func (c *controls) Pause(ctx context.Context, by control.Control) (control.Controlled, error) {
	paused, err := control.New(c.node.store).Pause(ctx, by)
	if err == nil {
		c.node.spread()
	}
	return paused, err
}

// Resume ends holds. See [control.Store.Resume].
func (c *controls) Resume(ctx context.Context, by control.Control, maxFailed *string) (control.Controlled, error) {
	resumed, err := control.New(c.node.store).Resume(ctx, by, maxFailed)
	if err == nil {
		c.Recheck(ctx, resumed.Runs)
		c.node.spread()
	}
	return resumed, err
}

// Approve lets all items of runs go that wait for it, or a step begin. See [control.Store.Approve].
func (c *controls) Approve(ctx context.Context, by control.Control) (control.Controlled, error) {
	approved, err := control.New(c.node.store).Approve(ctx, by)
	if len(approved.Runs) > 0 {
		c.node.spread()
	}
	return approved, err
}

// SetRun changes settings of a run. See [control.Store.SetRun].
func (c *controls) SetRun(ctx context.Context, change control.RunChange) (control.RunChanged, error) {
	changed, err := control.New(c.node.store).SetRun(ctx, change)
	if err == nil {
		c.Recheck(ctx, []workqueue.RunID{change.Run})
		c.node.spread()
	}
	return changed, err
}

// Cancel stops runs and takes their requests out of the stream. See [control.Store.Cancel].
func (c *controls) Cancel(ctx context.Context, by control.Control) (control.Cancelled, error) {
	cancelled, err := control.New(c.node.store).Cancel(ctx, by)
	if len(cancelled.Runs) > 0 {
		removeRequests(ctx, c.node, cancelled.Requests)
		c.node.spread()
	}
	return cancelled, err
}

// maxRechecked bounds the runs that are looked at in one go; the leader sees to any others within a second.
const maxRechecked = 100

// Recheck acts on what became due while runs were held, or with their new settings.
func (c *controls) Recheck(ctx context.Context, runs []workqueue.RunID) {
	for _, run := range runs[:min(len(runs), maxRechecked)] {
		_, err := control.New(c.node.store).CheckThreshold(ctx, run)
		if err == nil {
			_, err = control.New(c.node.store).CheckGuard(ctx, run)
		}
		if err == nil {
			_, err = control.New(c.node.store).CheckCanary(ctx, run)
		}
		if err != nil {
			c.node.log.Debug("check a run that changed; the leader will see to it", zap.Error(err))
			return
		}
	}
}
