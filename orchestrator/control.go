package orchestrator

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Start loads a run and sets nodes to work on it. See [start.Store.Load].
func (n *Node) Start(ctx context.Context, req start.LoadRequest, next func(*start.LoadItem) error,
) (start.Loaded, error) {
	req.Session = n.Session()
	loaded, err := start.New(n.store).Load(ctx, req, counted(n.cfg.Meter, next))
	n.noteUncleared(err)
	if err == nil {
		n.announce(loaded.Completions, time.Time{})
		n.spread()
	}
	return loaded, err
}

// Rerun sets items of a run going again. See [redo.Store.Rerun].
func (n *Node) Rerun(ctx context.Context, req redo.RerunRequest) (redo.Rerun, error) {
	if req.Settings.Endpoint != "" {
		if err := wire.ValidateName(req.Settings.Endpoint); err != nil {
			return redo.Rerun{}, &workqueue.SettingError{Detail: err.Error()}
		}
	}
	rerun, err := redo.New(n.store).Rerun(ctx, req)
	if err == nil && !req.DryRun {
		n.removeRequests(ctx, rerun.Requests)
		n.spread()
	}
	return rerun, err
}

// Reset takes parts of a step back, and their requests out of the stream. See [redo.Store.Reset].
func (n *Node) Reset(ctx context.Context, req redo.ResetRequest) (redo.Reset, error) {
	reset, err := redo.New(n.store).Reset(ctx, req)
	if err == nil && !req.DryRun {
		n.removeRequests(ctx, reset.Requests)
		n.spread()
	}
	return reset, err
}

// Pause holds runs, on every node at once. See [control.Store.Pause].
func (n *Node) Pause(ctx context.Context, c control.Control) (control.Controlled, error) {
	paused, err := control.New(n.store).Pause(ctx, c)
	if err == nil {
		n.spread()
	}
	return paused, err
}

// Resume ends holds. See [control.Store.Resume].
func (n *Node) Resume(ctx context.Context, c control.Control, maxFailed *string) (control.Controlled, error) {
	resumed, err := control.New(n.store).Resume(ctx, c, maxFailed)
	if err == nil {
		n.recheck(ctx, resumed.Runs)
		n.spread()
	}
	return resumed, err
}

// Approve lets all items of runs go that wait for it. See [control.Store.Approve].
func (n *Node) Approve(ctx context.Context, c control.Control) (control.Controlled, error) {
	approved, err := control.New(n.store).Approve(ctx, c)
	if len(approved.Runs) > 0 {
		n.spread()
	}
	return approved, err
}

// SetRun changes settings of a run. See [control.Store.SetRun].
func (n *Node) SetRun(ctx context.Context, c control.RunChange) (control.RunChanged, error) {
	changed, err := control.New(n.store).SetRun(ctx, c)
	if err == nil {
		n.recheck(ctx, []workqueue.RunID{c.Run})
		n.spread()
	}
	return changed, err
}

// Cancel stops runs and takes their requests out of the stream. See [control.Store.Cancel].
func (n *Node) Cancel(ctx context.Context, c control.Control) (control.Cancelled, error) {
	cancelled, err := control.New(n.store).Cancel(ctx, c)
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
		_, err := control.New(n.store).CheckThreshold(ctx, run)
		if err == nil {
			_, err = control.New(n.store).CheckCanary(ctx, run)
		}
		if err != nil {
			n.log.Debug("check a run that changed; the leader will see to it", zap.Error(err))
			return
		}
	}
}

// Requeue has dead letters sent to their endpoints again. See [deadletter.Store.Requeue].
func (n *Node) Requeue(ctx context.Context, sel deadletter.DeadSelection, actor string) (deadletter.Requeue, error) {
	requeue, err := deadletter.New(n.store).Requeue(ctx, sel, actor)
	if err == nil {
		signal(n.requeued)
	}
	return requeue, err
}

// SetEndpoint stores the settings of an endpoint and brings them to its consumer at once, where its services see them.
// When that fails the leader does it. See [pace.Store.SetEndpoint].
func (n *Node) SetEndpoint(ctx context.Context, set pace.EndpointSetting, actor string) error {
	if err := wire.ValidateName(set.Endpoint); err != nil {
		return err
	}
	if err := pace.New(n.store).SetEndpoint(ctx, set, actor); err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if err := n.applySetting(timed, set); err != nil {
		n.log.Debug("set an endpoint's consumer; the leader will see to it", zap.Error(err))
	}
	return nil
}
