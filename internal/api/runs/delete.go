package runs

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/retention"
)

// DeleteSettings go with the deletion of a run.
type DeleteSettings struct {
	DryRun bool   `json:"dry_run,omitempty" doc:"change nothing, and say what would go"`
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"why, for whoever asks for the run and for the audit log"`
}

// RunDeleted is what goes with a run that was deleted, or would be.
type RunDeleted struct {
	Run    workqueue.RunID `json:"run"`
	DryRun bool            `json:"dry_run" doc:"nothing was changed"`
	retention.Deletion
}

// deletions deletes runs.
type deletions struct {
	store     *database.DB
	mayChange func(actor string) error
	wake      func() // has the node that leads begin
}

func (d *deletions) register(k *kernel.Kernel, api huma.API) {
	kernel.Register(k, api, kernel.ByAdmin(huma.Operation{
		OperationID: "delete-run", Method: http.MethodPost, Path: "/runs/{run}/delete", Summary: "Delete a finished run",
		Description: "From then on nobody finds it; whoever asks for it by its id is told 410. The node that leads " +
			"deletes its rows in small pieces, for which the answer does not wait. A run that is under way, or ended " +
			"less than a minute ago, is refused.",
	}), d.deleteRun)
}

type deleteRunInput struct {
	kernel.RunPath
	kernel.Actor
	Body *DeleteSettings
}

func (d *deletions) deleteRun(ctx context.Context, in *deleteRunInput) (RunDeleted, error) {
	if err := d.mayChange(in.Name); err != nil {
		return RunDeleted{}, err
	}
	id, err := inspect.New(d.store).Resolve(ctx, in.Run)
	if err != nil {
		return RunDeleted{}, err
	}
	req := retention.DeleteRequest{Run: id, Actor: in.Name}
	if in.Body != nil {
		req.DryRun, req.Reason = in.Body.DryRun, in.Body.Reason
	}
	done, err := retention.New(d.store).DeleteByHand(ctx, req)
	if err != nil {
		return RunDeleted{}, err
	}
	if !req.DryRun {
		d.wake()
	}
	return RunDeleted{Run: id, DryRun: req.DryRun, Deletion: done}, nil
}
