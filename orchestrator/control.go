package orchestrator

import (
	"context"

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
