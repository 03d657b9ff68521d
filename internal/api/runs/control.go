package runs

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	controlstore "github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// ControlSettings goes with a pause, a resume, an approval or a cancel of one run.
type ControlSettings struct {
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"why, for whoever looks at the run and for the audit log"`
}

// ResumeSettings goes with the resume of one run.
type ResumeSettings struct {
	ControlSettings
	MaxFailed *string `json:"max_failed,omitempty" doc:"a new threshold: 500, 1%, or none" example:"2%"`
}

// ControlAll goes with an operation on every run that is under way.
type ControlAll struct {
	ControlSettings
	All bool `json:"all" enum:"true" doc:"must be true: every run that is under way is meant"`
}

// Controlled is what a pause, a resume, an approval or a cancel did.
type Controlled struct {
	Action string            `json:"action" enum:"pause,resume,approve,cancel"`
	Run    *workqueue.RunID  `json:"run,omitempty" doc:"when one run was meant"`
	Runs   []workqueue.RunID `json:"runs" doc:"those that changed"`
	Left   []LeftRun         `json:"left" doc:"of all runs, those that could not change"`
	Items  int64             `json:"items" doc:"paused: out; approved: let go; cancelled, resumed: without outcome"`
	Slices int64             `json:"slices" doc:"paused: requests that are out; cancelled: requests called back"`
}

// LeftRun is a run that an operation on all runs left as it is.
type LeftRun struct {
	Run workqueue.RunID `json:"run"`
	Why string          `json:"why"`
}

// control is an operation on one run or all.
type control func(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error)

func (s changes) registerControl(api huma.API) {
	all := []struct {
		action, one, every string
		do                 control
	}{
		{"pause", "Pause a run: nothing more of it is sent", "Pause every run", s.config.Controls.Pause},
		{"cancel", "Cancel a run", "Cancel every run", s.cancelled},
	}
	for _, a := range all {
		kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
			OperationID: a.action + "-run", Method: http.MethodPost, Path: "/runs/{run}/" + a.action, Summary: a.one,
		}), func(ctx context.Context, in *controlInput) (Controlled, error) {
			return s.control(ctx, a.action, in.Run, in.Name, in.Body, a.do)
		})
		s.registerAll(api, a.action, a.every, a.do)
	}
	gates := &gateOps{store: s.Store, controls: s.config.Controls, control: s.control}
	gates.register(s.Kernel, api)
	s.registerAll(api, "approve", "Approve every run whose canary waits", s.config.Controls.Approve)
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "resume-run", Method: http.MethodPost, Path: "/runs/{run}/resume", Summary: "Resume a run",
	}), s.resume)
	s.registerAll(api, "resume", "Resume every run that was paused",
		func(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error) {
			return s.config.Controls.Resume(ctx, c, nil)
		})
}

func (s changes) registerAll(api huma.API, action, summary string, do control) {
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: action + "-all-runs", Method: http.MethodPost, Path: "/runs/" + action, Summary: summary,
	}), func(ctx context.Context, in *controlAllInput) (Controlled, error) {
		if err := s.MayChange(in.Name); err != nil {
			return Controlled{}, err
		}
		done, err := do(ctx, controlstore.Control{All: true, Reason: in.Body.Reason, Actor: in.Name})
		return controlled(action, nil, done), err
	})
}

type controlInput struct {
	kernel.RunPath
	kernel.Actor
	Body *ControlSettings
}

type controlAllInput struct {
	kernel.Actor
	Body ControlAll
}

type resumeInput struct {
	kernel.RunPath
	kernel.Actor
	Body *ResumeSettings
}

func (s changes) resume(ctx context.Context, in *resumeInput) (Controlled, error) {
	var body ResumeSettings
	if in.Body != nil {
		body = *in.Body
	}
	limit, err := maxFailed(body.MaxFailed)
	if err != nil {
		return Controlled{}, err
	}
	return s.control(ctx, "resume", in.Run, in.Name, &body.ControlSettings,
		func(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error) {
			return s.config.Controls.Resume(ctx, c, limit)
		})
}

func (s changes) control(ctx context.Context, action, ref, actor string, body *ControlSettings, do control,
) (Controlled, error) {
	if err := s.MayChange(actor); err != nil {
		return Controlled{}, err
	}
	id, err := inspect.New(s.Store).Resolve(ctx, ref)
	if err != nil {
		return Controlled{}, err
	}
	c := controlstore.Control{Run: id, Actor: actor}
	if body != nil {
		c.Reason = body.Reason
	}
	done, err := do(ctx, c)
	return controlled(action, &id, done), err
}

func (s changes) cancelled(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error) {
	done, err := s.config.Controls.Cancel(ctx, c)
	return done.Controlled, err
}

func controlled(action string, run *workqueue.RunID, done controlstore.Controlled) Controlled {
	out := Controlled{Action: action, Run: run, Runs: append([]workqueue.RunID{}, done.Runs...), Left: []LeftRun{},
		Items: done.Items, Slices: done.Slices}
	for _, l := range done.Left {
		out.Left = append(out.Left, LeftRun(l))
	}
	return out
}
