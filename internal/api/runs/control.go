package runs

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	controlstore "github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/retention"
)

// ControlSettings are the settings of a pause, resume, approval or cancel.
type ControlSettings struct {
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"why, shown with the run and in the audit log"`
}

// ResumeSettings are the settings of a resume.
type ResumeSettings struct {
	ControlSettings
	MaxFailed *string `json:"max_failed,omitempty" doc:"a new threshold: 500, 1%, or none" example:"2%"`
}

// ControlAll applies an operation to all runs in progress.
type ControlAll struct {
	ControlSettings
	All bool `json:"all" enum:"true" doc:"must be true: applies to every run in progress"`
}

// Controlled is the result of a pause, resume, approval or cancel.
type Controlled struct {
	Action string           `json:"action" enum:"pause,resume,approve,cancel"`
	Run    *workqueue.RunID `json:"run,omitempty" doc:"of a change of one run"`
	controlstore.Controlled
}

type control func(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error)

func (s changes) registerControl(api huma.API) {
	all := []struct {
		action, one, every string
		do                 control
	}{
		{"pause", "Pause a run", "Pause every run", s.config.Engine.Pause},
		{"cancel", "Cancel a run", "Cancel every run", s.cancelled},
	}
	for _, a := range all {
		apicore.Register(s.Core, api, apicore.Post(a.action+"-run", "/runs/{run}/"+a.action,
			a.one, ""), func(ctx context.Context, in *runChange[*ControlSettings]) (Controlled, error) {
			return s.control(ctx, a.action, in.ID, in.Name, cmp.Or(in.Body, &ControlSettings{}).Reason, a.do)
		})
		s.registerAll(api, a.action, a.every, a.do)
	}
	s.registerGates(api)
	s.registerAll(api, "approve", "Approve every run whose canary waits", s.config.Engine.Approve)
	apicore.Register(s.Core, api, apicore.Post("resume-run", "/runs/{run}/resume", "Resume a run", ""), s.resume)
	s.registerAll(api, "resume", "Resume every paused run",
		func(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error) {
			return s.config.Engine.Resume(ctx, c, nil)
		})
}

func (s changes) registerAll(api huma.API, action, summary string, do control) {
	apicore.Register(s.Core, api, apicore.In(apicore.Anywhere, apicore.Post(action+"-all-runs", "/runs/"+action,
		summary, "")), func(ctx context.Context, in *struct {
		apicore.Changer
		Body ControlAll
	},
	) (Controlled, error) {
		done, err := do(ctx, controlstore.Control{All: true, Reason: in.Body.Reason, Actor: in.Name})
		return controlled(action, nil, done), err
	})
}

type runChange[B any] struct {
	apicore.RunPath
	apicore.Changer
	Body B
}

func (s changes) resume(ctx context.Context, in *runChange[*ResumeSettings]) (Controlled, error) {
	body := cmp.Or(in.Body, &ResumeSettings{})
	limit, err := maxFailed(body.MaxFailed)
	if err != nil {
		return Controlled{}, err
	}
	return s.control(ctx, "resume", in.ID, in.Name, body.Reason,
		func(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error) {
			return s.config.Engine.Resume(ctx, c, limit)
		})
}

func (s changes) control(ctx context.Context, action string, run workqueue.RunID, actor, reason string, do control,
) (Controlled, error) {
	done, err := do(ctx, controlstore.Control{Run: run, Actor: actor, Reason: reason})
	return controlled(action, &run, done), err
}

func (s changes) cancelled(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error) {
	done, err := s.config.Engine.Cancel(ctx, c)
	return done.Controlled, err
}

func controlled(action string, run *workqueue.RunID, done controlstore.Controlled) Controlled {
	done.Runs = append([]workqueue.RunID{}, done.Runs...)
	done.Skipped = append([]controlstore.SkippedRun{}, done.Skipped...)
	return Controlled{action, run, done}
}

// Sizing is a number, or auto: nodes determine it. In JSON 500 or "auto".
type Sizing struct{ workqueue.Adaptive }

// Schema describes both forms.
func (Sizing) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeInteger}, {Type: huma.TypeString}},
		Description: "a number, or auto", Examples: []any{500, "auto"}}
}

func (s Sizing) given() *workqueue.Adaptive {
	if s.Adaptive == (workqueue.Adaptive{}) {
		return nil
	}
	return &s.Adaptive
}

// RunChanges are new settings of a run in any state. Absent ones stay unchanged.
type RunChanges struct {
	Step      string  `json:"step,omitempty" maxLength:"64" doc:"whose settings; absent: of the only one"`
	Priority  *int    `json:"priority,omitempty" doc:"runs with a greater number go first"`
	DoneBy    *string `json:"done_by,omitempty" doc:"finish by then: 06:00 Europe/Berlin, a time with offset, or none"`
	Gentle    *bool   `json:"gentle,omitempty" doc:"with done_by: only as many requests in flight as it needs"`
	MaxFailed *string `json:"max_failed,omitempty" doc:"more failures pause the run: 500, 1% or none"`
	workqueue.StepOverrides
	Reason string            `json:"reason,omitempty" maxLength:"500" doc:"why, for the audit log"`
	IfWas  map[string]string `json:"if_was,omitempty" doc:"expected current values of the settings in this request, as text; 409 if one differs"`
}

// ChangedRun is the result of a change of settings.
type ChangedRun struct {
	Run    workqueue.RunID `json:"run"`
	Step   string          `json:"step"`
	Before map[string]any  `json:"before" doc:"of the settings that became different"`
	After  map[string]any  `json:"after"`
	Paused string          `json:"paused,omitempty" doc:"why the run is paused, and stays so"`

	Warnings []string `json:"warnings,omitempty" doc:"like a done_by that it will miss by forecast"`
}

func (s changes) setRun(ctx context.Context, in *runChange[RunChanges]) (ChangedRun, error) {
	change, err := in.Body.change()
	if err != nil {
		return ChangedRun{}, err
	}
	if err := apicore.CheckIfWas(in.Body, in.Body.IfWas); err != nil {
		return ChangedRun{}, err
	}
	change.Run, change.Actor, change.IfWas = in.ID, in.Name, in.Body.IfWas
	done, err := s.config.Engine.SetRun(ctx, change)
	if err != nil {
		return ChangedRun{}, err
	}
	out := ChangedRun{Run: change.Run, Step: done.Step, Before: done.Before, After: done.After,
		Paused: pausedText(done.Hold, done.HoldDetail)}
	if change.DoneBy != nil {
		out.Warnings = late(ctx, s.Store, change.Run)
	}
	return out, nil
}

func pausedText(hold controlstore.Hold, detail string) string {
	text := map[controlstore.Hold]string{
		controlstore.HoldOperator: "by an operator", controlstore.HoldThreshold: "for its threshold",
		controlstore.HoldFailFast: "by its fail-fast limit", controlstore.HoldCanary: "until its canary is approved",
	}[hold]
	if text != "" && detail != "" {
		text += ": " + detail
	}
	return text
}

func (c *RunChanges) change() (controlstore.RunChange, error) {
	laid := gather.Overrides{Priority: c.Priority, DoneBy: c.DoneBy, StepOverrides: c.StepOverrides}
	if err := laid.Validate(); err != nil {
		return controlstore.RunChange{}, BadSetting(err)
	}
	out := controlstore.RunChange{Step: c.Step, Priority: c.Priority, Gentle: c.Gentle, Reason: c.Reason}
	out.Settings.StepOverrides = c.StepOverrides
	if c.DoneBy != nil {
		out.DoneBy = &time.Time{}
		if by, _ := workqueue.ParseDoneBy(*c.DoneBy); by != "" { // it was checked
			*out.DoneBy, _ = workqueue.DoneBy(by, time.Now())
		}
	}
	var err error
	out.MaxFailed, err = maxFailed(c.MaxFailed)
	return out, err
}

func maxFailed(text *string) (*string, error) {
	if text == nil {
		return nil, nil //nolint:nilnil // not given
	}
	if *text == "" { // more likely a slip than a wish for no threshold
		return nil, apicore.BadInput("max_failed is empty; none removes the threshold")
	}
	limit, err := workqueue.ParseMaxFailed(*text)
	if err != nil {
		return nil, apicore.BadInput(fmt.Sprintf("max_failed is %q: %v", apicore.Echo(*text), err))
	}
	return &limit, nil
}

// ApproveSettings are the settings of an approval.
type ApproveSettings struct {
	ControlSettings
	Step string `json:"step,omitempty" maxLength:"64" doc:"start this waiting step; absent: approve the canary"`

	IfWaitingSince *time.Time `json:"if_waiting_since,omitempty" doc:"since of the gate as read; 409 if older"`
}

// GateDocument is a gate as its approvers see it.
type GateDocument struct {
	controlstore.GateView
	Refused string `json:"refused,omitempty" doc:"why the caller may not approve it now"`
}

func (s changes) registerGates(api huma.API) {
	show := apicore.Get("get-gate", "/runs/{run}/gate", "What waits for approval between two steps")
	apicore.Register(s.Core, api, apicore.ScansRun(show), s.gate)
	apicore.Register(s.Core, api, apicore.Post("approve-run", "/runs/{run}/approve",
		"Release items held by a canary, or start a step",
		"With a step, the one that waits at its gate (barrier: approve) begins. If its plan says approvers: "+
			"other, users named in acts of the gate are refused with 403. With if_waiting_since, what is approved is what was "+
			"looked at."), s.approve)
}

type gateInput struct {
	apicore.RunPath
	apicore.Actor
	Step   string `query:"step" maxLength:"64" doc:"absent: the one that waits, or the only one that has a gate"`
	Sample int    `query:"sample" minimum:"0" maximum:"100" default:"5" doc:"how many items, at random"`
}

func (s changes) gate(ctx context.Context, in *gateInput) (GateDocument, error) {
	view, err := controlstore.New(s.Store).View(ctx, in.ID, in.Step, in.Sample)
	var eyes []string
	if err == nil {
		eyes, err = s.Eyes(ctx, in.Name)
	}
	if err != nil {
		return GateDocument{}, err
	}
	out := GateDocument{GateView: *view}
	if refused := view.Refused(eyes...); refused != nil {
		out.Refused = refused.Error()
	}
	return out, nil
}

func (s changes) approve(ctx context.Context, in *runChange[*ApproveSettings]) (Controlled, error) {
	body := cmp.Or(in.Body, &ApproveSettings{})
	return s.control(ctx, "approve", in.ID, in.Name, body.Reason,
		func(ctx context.Context, c controlstore.Control) (_ controlstore.Controlled, err error) {
			c.Step = body.Step
			if c.Eyes, err = s.Eyes(ctx, in.Name); err != nil {
				return controlstore.Controlled{}, err
			}
			if body.IfWaitingSince != nil {
				c.Seen = *body.IfWaitingSince
			}
			return s.config.Engine.Approve(ctx, c)
		})
}

// DeleteSettings are the settings of a deletion.
type DeleteSettings struct {
	DryRun bool   `json:"dry_run,omitempty" doc:"change nothing; show what would be deleted"`
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"why, shown to callers of the deleted run and audited"`
}

// RunDeleted is what was, or would be, deleted with a run.
type RunDeleted struct {
	Run    workqueue.RunID `json:"run"`
	DryRun bool            `json:"dry_run" doc:"nothing was changed"`
	retention.Deletion
}

func (s changes) deleteRun(ctx context.Context, in *runChange[*DeleteSettings]) (RunDeleted, error) {
	set := cmp.Or(in.Body, &DeleteSettings{})
	req := retention.DeleteRequest{Run: in.ID, Actor: in.Name, DryRun: set.DryRun, Reason: set.Reason}
	done, err := retention.New(s.Store).DeleteByHand(ctx, req)
	if err != nil {
		return RunDeleted{}, err
	}
	if !req.DryRun {
		s.Wake(orchestrator.TaskRetention) // makes the leader begin
	}
	return RunDeleted{Run: in.ID, DryRun: req.DryRun, Deletion: done}, nil
}
