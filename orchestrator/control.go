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
		n.wakeOthers()
		signal(n.publish)
	}
	return loaded, err
}

// Rerun sets items of a run going again. See [workqueue.Store.Rerun].
func (n *Node) Rerun(ctx context.Context, req workqueue.RerunRequest) (workqueue.Rerun, error) {
	rerun, err := n.store.Rerun(ctx, req)
	if err == nil {
		n.wakeOthers()
		signal(n.publish)
	}
	return rerun, err
}

// Cancel stops a run and takes its requests out of the stream. See [workqueue.Store.Cancel].
func (n *Node) Cancel(ctx context.Context, run workqueue.RunID, actor string) (workqueue.Cancelled, error) {
	cancelled, err := n.store.Cancel(ctx, run, actor)
	if err == nil {
		n.removeRequests(ctx, cancelled.Slices)
		n.wakeOthers()
		signal(n.publish)
	}
	return cancelled, err
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
