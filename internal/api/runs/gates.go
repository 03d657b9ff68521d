package runs

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	controlstore "github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/gate"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// ApproveSettings goes with the approval of one run.
type ApproveSettings struct {
	ControlSettings
	Step string `json:"step,omitempty" maxLength:"64" doc:"let this step begin, which waits; absent: the canary is meant"`

	Seen *time.Time `json:"seen,omitempty" doc:"since of the gate that was looked at; 409 when it has waited anew since"`
}

// GateDocument is a gate as somebody sees it who may have to approve it.
type GateDocument struct {
	gate.GateView
	Refused string `json:"refused,omitempty" doc:"why who asks may not approve it now"`
}

// gateOps shows gates and lets steps begin.
type gateOps struct {
	store    *database.DB
	controls Controls
	control  func(ctx context.Context, action, ref, actor string, body *ControlSettings, do control) (Controlled, error)
}

func (g *gateOps) register(k *kernel.Kernel, api huma.API) {
	show := kernel.Get("get-gate", "/runs/{run}/gate", "What waits for somebody between two steps of a run")
	kernel.Register(k, api, kernel.Heavy(show), g.show)
	kernel.Register(k, api, kernel.ByOperator(huma.Operation{
		OperationID: "approve-run", Method: http.MethodPost, Path: "/runs/{run}/approve",
		Summary: "Let the items go that a canary held back, or a step begin",
		Description: "With a step, that begins which waits at its gate (barrier: approve). Where its plan says approve_by: " +
			"other, who started the run is refused with 403. With seen, what is approved is what was looked at.",
	}), g.approve)
}

type gateInput struct {
	kernel.RunPath
	kernel.Actor
	Step   string `query:"step" maxLength:"64" doc:"absent: the one that waits, or the only one that has a gate"`
	Sample int    `query:"sample" minimum:"0" maximum:"100" default:"5" doc:"so many items, by chance"`
}

func (g *gateOps) show(ctx context.Context, in *gateInput) (GateDocument, error) {
	id, err := inspect.New(g.store).Resolve(ctx, in.Run)
	if err != nil {
		return GateDocument{}, err
	}
	view, err := gate.New(g.store).View(ctx, id, in.Step, in.Sample)
	if err != nil {
		return GateDocument{}, err
	}
	out := GateDocument{GateView: *view}
	if refused := view.Refused(in.Name); refused != nil {
		out.Refused = refused.Error()
	}
	return out, nil
}

type approveInput struct {
	kernel.RunPath
	kernel.Actor
	Body *ApproveSettings
}

func (g *gateOps) approve(ctx context.Context, in *approveInput) (Controlled, error) {
	var body ApproveSettings
	if in.Body != nil {
		body = *in.Body
	}
	return g.control(ctx, "approve", in.Run, in.Name, &body.ControlSettings,
		func(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error) {
			c.Step = body.Step
			if body.Seen != nil {
				c.Seen = *body.Seen
			}
			return g.controls.Approve(ctx, c)
		})
}
