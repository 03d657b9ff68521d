package orchestrator

import (
	"context"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// redoer has things done again.
type redoer struct{ node *kernel }

func newRedoer(k *kernel) *redoer { return &redoer{k} }

// Rerun sets items of a run going again. See [redo.Store.Rerun].
func (r *redoer) Rerun(ctx context.Context, req redo.RerunRequest) (redo.Rerun, error) {
	if req.Settings.Endpoint != "" {
		if err := wire.ValidateName(req.Settings.Endpoint); err != nil {
			return redo.Rerun{}, &workqueue.SettingError{Detail: err.Error()}
		}
	}
	rerun, err := redo.New(r.node.store).Rerun(ctx, req)
	if err == nil && !req.DryRun {
		removeRequests(ctx, r.node, rerun.Requests)
		r.node.spread()
	}
	return rerun, err
}

// Reset takes parts of a step back, and their requests out of the stream. See [redo.Store.Reset].
func (r *redoer) Reset(ctx context.Context, req redo.ResetRequest) (redo.Reset, error) {
	reset, err := redo.New(r.node.store).Reset(ctx, req)
	if err == nil && !req.DryRun {
		removeRequests(ctx, r.node, reset.Requests)
		r.node.spread()
	}
	return reset, err
}

// Correct gives items other payloads, and takes requests with the former ones out of the stream. See
// [redo.Store.Correct].
func (r *redoer) Correct(ctx context.Context, req redo.CorrectRequest) (redo.Corrected, error) {
	corrected, err := redo.New(r.node.store).Correct(ctx, req)
	if err == nil && !req.DryRun {
		removeRequests(ctx, r.node, corrected.Requests)
		r.node.spread()
	}
	return corrected, err
}
