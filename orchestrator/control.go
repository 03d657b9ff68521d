package orchestrator

import (
	"context"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/workqueue"
)

// Start loads a run and sets nodes to work on it. See [workqueue.Store.Load].
func (n *Node) Start(ctx context.Context, req workqueue.LoadRequest, next func(*workqueue.LoadItem) error,
) (workqueue.Loaded, error) {
	req.Session = n.Session()
	loaded, err := n.store.Load(ctx, req, next)
	n.noteUncleared(err)
	if err == nil {
		n.spread()
	}
	return loaded, err
}

// Rerun sets items of a run going again. See [workqueue.Store.Rerun].
func (n *Node) Rerun(ctx context.Context, req workqueue.RerunRequest) (workqueue.Rerun, error) {
	if req.Settings.Endpoint != "" {
		if err := endpoints.ValidateName(req.Settings.Endpoint); err != nil {
			return workqueue.Rerun{}, &workqueue.SettingError{Detail: err.Error()}
		}
	}
	rerun, err := n.store.Rerun(ctx, req)
	if err == nil && !req.DryRun {
		n.removeRequests(ctx, rerun.Requests)
		n.spread()
	}
	return rerun, err
}

// Reset takes parts of a step back, and their requests out of the stream. See [workqueue.Store.Reset].
func (n *Node) Reset(ctx context.Context, req workqueue.ResetRequest) (workqueue.Reset, error) {
	reset, err := n.store.Reset(ctx, req)
	if err == nil && !req.DryRun {
		n.removeRequests(ctx, reset.Requests)
		n.spread()
	}
	return reset, err
}

// Pause holds runs, on every node at once. See [workqueue.Store.Pause].
func (n *Node) Pause(ctx context.Context, c workqueue.Control) (workqueue.Controlled, error) {
	paused, err := n.store.Pause(ctx, c)
	if err == nil {
		n.spread()
	}
	return paused, err
}

// Resume ends holds. See [workqueue.Store.Resume].
func (n *Node) Resume(ctx context.Context, c workqueue.Control, maxFailed *string) (workqueue.Controlled, error) {
	resumed, err := n.store.Resume(ctx, c, maxFailed)
	if err == nil {
		n.recheck(ctx, resumed.Runs)
		n.spread()
	}
	return resumed, err
}

// Approve lets all items of runs go that wait for it. See [workqueue.Store.Approve].
func (n *Node) Approve(ctx context.Context, c workqueue.Control) (workqueue.Controlled, error) {
	approved, err := n.store.Approve(ctx, c)
	if len(approved.Runs) > 0 {
		n.spread()
	}
	return approved, err
}

// SetRun changes settings of a run. See [workqueue.Store.SetRun].
func (n *Node) SetRun(ctx context.Context, c workqueue.RunChange) (workqueue.RunChanged, error) {
	changed, err := n.store.SetRun(ctx, c)
	if err == nil {
		n.recheck(ctx, []workqueue.RunID{c.Run})
		n.spread()
	}
	return changed, err
}

// Cancel stops runs and takes their requests out of the stream. See [workqueue.Store.Cancel].
func (n *Node) Cancel(ctx context.Context, c workqueue.Control) (workqueue.Cancelled, error) {
	cancelled, err := n.store.Cancel(ctx, c)
	if len(cancelled.Runs) > 0 {
		n.removeRequests(ctx, cancelled.Requests)
		n.spread()
	}
	return cancelled, err
}

// spread tells the nodes and the world of a change that has been committed.
func (n *Node) spread() {
	n.wakeOthers()
	signal(n.publish)
}

// maxRechecked bounds the runs that are looked at in one go; the leader sees to any others within a second.
const maxRechecked = 100

// recheck acts on what became due while runs were held, or with their new settings.
func (n *Node) recheck(ctx context.Context, runs []workqueue.RunID) {
	for _, run := range runs[:min(len(runs), maxRechecked)] {
		_, err := n.store.CheckThreshold(ctx, run)
		if err == nil {
			_, err = n.store.CheckCanary(ctx, run)
		}
		if err != nil {
			n.log.Debug("check a run that changed; the leader will see to it", zap.Error(err))
			return
		}
	}
}

// Requeue has dead letters sent to their endpoints again. See [workqueue.Store.Requeue].
func (n *Node) Requeue(ctx context.Context, sel workqueue.DeadSelection, actor string) (workqueue.Requeue, error) {
	requeue, err := n.store.Requeue(ctx, sel, actor)
	if err == nil {
		signal(n.letters)
	}
	return requeue, err
}

// SetEndpoint stores the settings of an endpoint and brings them to its consumer at once, where its services see them.
// When that fails the leader does it. See [workqueue.Store.SetEndpoint].
func (n *Node) SetEndpoint(ctx context.Context, set workqueue.EndpointSetting, actor string) error {
	if err := endpoints.ValidateName(set.Endpoint); err != nil {
		return err
	}
	if err := n.store.SetEndpoint(ctx, set, actor); err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if err := n.applySetting(timed, set); err != nil {
		n.log.Debug("set an endpoint's consumer; the leader will see to it", zap.Error(err))
	}
	return nil
}
