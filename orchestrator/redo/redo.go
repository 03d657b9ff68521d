// Package redo has items done again, takes their requests out of the stream, and tells the nodes.
package redo

import (
	"context"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/orchestrator/internal/request"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// Redoer has things done again.
type Redoer struct{ node *kernel.Kernel }

// New returns what has items done again.
func New(k *kernel.Kernel) *Redoer { return &Redoer{k} }

// Rerun sets items of a run going again. See [redo.Store.Rerun].
func (r *Redoer) Rerun(ctx context.Context, req redo.RerunRequest) (redo.Rerun, error) {
	if req.Settings.Endpoint != "" {
		if err := wire.ValidateName(req.Settings.Endpoint); err != nil {
			return redo.Rerun{}, &workqueue.SettingError{Detail: err.Error()}
		}
	}
	rerun, err := redo.New(r.node.Store).Rerun(ctx, req)
	if err == nil && !req.DryRun {
		request.Remove(ctx, r.node, rerun.Requests)
		r.node.Spread()
	}
	return rerun, err
}

// Reset takes parts of a step back, and their requests out of the stream. See [redo.Store.Reset].
func (r *Redoer) Reset(ctx context.Context, req redo.ResetRequest) (redo.Reset, error) {
	reset, err := redo.New(r.node.Store).Reset(ctx, req)
	if err == nil && !req.DryRun {
		request.Remove(ctx, r.node, reset.Requests)
		r.node.Spread()
	}
	return reset, err
}

// Correct gives items other payloads, and takes requests with the former ones out of the stream. See
// [redo.Store.Correct].
func (r *Redoer) Correct(ctx context.Context, req redo.CorrectRequest) (redo.Corrected, error) {
	corrected, err := redo.New(r.node.Store).Correct(ctx, req)
	if err == nil && !req.DryRun {
		request.Remove(ctx, r.node, corrected.Requests)
		r.node.Spread()
	}
	return corrected, err
}
