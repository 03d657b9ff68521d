package runs

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	controlstore "github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/report"
)

// RunHistory is what happened to a run.
type RunHistory struct {
	Entries []report.HistoryEntry `json:"entries" nullable:"false" doc:"newest first, 500 at the most"`
}

// RunNote is what somebody has to say of a run.
type RunNote struct {
	Text string `json:"text" minLength:"1" maxLength:"2000"`
}

// histories answers what happened to runs.
type histories struct{ *Routes }

func (h histories) register(api huma.API) {
	op := kernel.Broad(kernel.Get("get-history", "/runs/{run}/history", "What happened to a run"))
	op.Description = "What people and nodes did to it, its ends, notes, breakers of its endpoints that opened and " +
		"closed, versions of services that first answered, and alerts that were told of it."
	kernel.Register(h.Kernel, api, op, h.get)
	kernel.Register(h.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "note-run", Method: http.MethodPost, Path: "/runs/{run}/notes", Summary: "Write a note of a run",
		Description: "For all who look at the run. It stands in the audit log, as its entry's reason.",
	}), h.note)
}

func (h histories) get(ctx context.Context, in *runInput) (RunHistory, error) {
	id, err := inspect.New(h.Store).Resolve(ctx, in.Run)
	if err != nil {
		return RunHistory{}, err
	}
	entries, err := report.New(h.Store).History(ctx, id)
	return RunHistory{entries}, err
}

type noteInput struct {
	kernel.RunPath
	kernel.Actor
	Body RunNote
}

func (h histories) note(ctx context.Context, in *noteInput) (RunHistory, error) {
	if err := h.MayChange(in.Name); err != nil {
		return RunHistory{}, err
	}
	id, err := inspect.New(h.Store).Resolve(ctx, in.Run)
	if err != nil {
		return RunHistory{}, err
	}
	if err := controlstore.New(h.Store).Note(ctx, id, in.Body.Text, in.Name); err != nil {
		return RunHistory{}, err
	}
	entries, err := report.New(h.Store).History(ctx, id)
	return RunHistory{entries}, err
}
