package endpoint

import (
	"context"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// ChangeEndpoint changes settings of an endpoint, leaves the others as they are and returns all of them. Limits hold at
// once; the concurrency is brought to its consumer, where its services see it, by the leader when that fails here.
// See [pace.Store.ChangeEndpoint].
func (e *Consumers) ChangeEndpoint(
	ctx context.Context, change pace.EndpointChange, actor string,
) (pace.EndpointSetting, error) {
	if kind, _ := workqueue.TargetKind(change.Endpoint); kind == workqueue.KindEndpoint {
		if err := wire.ValidateName(change.Endpoint); err != nil {
			return pace.EndpointSetting{}, err
		}
	}
	set, err := pace.New(e.node.Store).ChangeEndpoint(ctx, change, actor)
	if err != nil {
		return set, err
	}
	e.node.WakeOthers() // what a limit kept back may go now
	if change.Concurrency == nil {
		return set, nil
	}
	timed, cancel := context.WithTimeout(ctx, kernel.LookTimeout)
	defer cancel()
	if err := e.applySetting(timed, set); err != nil {
		e.node.Log.Debug("set an endpoint's consumer; the leader will see to it", zap.Error(err))
	}
	return set, nil
}
