package runs

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	controlstore "github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Sizing is a number, or auto: nodes find it. In JSON 500 or "auto".
type Sizing struct{ workqueue.Adaptive }

// Schema tells huma of both forms.
func (Sizing) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeInteger}, {Type: huma.TypeString}},
		Description: "a number, or auto", Examples: []any{500, "auto"}}
}

// given is nil for 0, which is no size.
func (s Sizing) given() *workqueue.Adaptive {
	if s.Adaptive == (workqueue.Adaptive{}) {
		return nil
	}
	return &s.Adaptive
}

// RunChanges is new settings of a run that is under way or has ended. What is left out stays.
type RunChanges struct {
	Step      string  `json:"step,omitempty" maxLength:"64" doc:"whose settings; absent: of the only one"`
	Priority  *int    `json:"priority,omitempty" doc:"runs with a greater number go first"`
	MaxFailed *string `json:"max_failed,omitempty" doc:"more failures pause the run: 500, 1% or none"`
	workqueue.StepOverrides
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"why, for the audit log"`
}

// ChangedRun is what a change of settings made different.
type ChangedRun struct {
	Run    workqueue.RunID `json:"run"`
	Step   string          `json:"step"`
	Before map[string]any  `json:"before" doc:"of the settings that became different"`
	After  map[string]any  `json:"after"`
	Paused string          `json:"paused,omitempty" doc:"why the run is paused, and stays so"`
}

type setRunInput struct {
	kernel.RunPath
	kernel.Actor
	Body RunChanges
}

func (s changes) registerSet(api huma.API) {
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "set-run", Method: http.MethodPost, Path: "/runs/{run}/settings",
		Summary: "Change settings of a run while it runs",
	}), s.setRun)
}

func (s changes) setRun(ctx context.Context, in *setRunInput) (ChangedRun, error) {
	change, err := in.Body.change()
	if err := cmp.Or(err, s.MayChange(in.Name)); err != nil {
		return ChangedRun{}, err
	}
	if change.Run, err = inspect.New(s.Store).Resolve(ctx, in.Run); err != nil {
		return ChangedRun{}, err
	}
	change.Actor = in.Name
	done, err := s.config.Controls.SetRun(ctx, change)
	if err != nil {
		return ChangedRun{}, kernel.Seen(err, "tranche run show "+change.Run.String())
	}
	return ChangedRun{Run: change.Run, Step: done.Step, Before: done.Before, After: done.After,
		Paused: pausedText(done.Hold, done.HoldDetail)}, nil
}

// pausedText says why a run is paused; nothing when it is not.
func pausedText(hold controlstore.Hold, detail string) string {
	text := map[controlstore.Hold]string{
		controlstore.HoldOperator: "by an operator", controlstore.HoldThreshold: "for its threshold",
		controlstore.HoldGuard: "by its guard", controlstore.HoldCanary: "until its canary is approved",
	}[hold]
	if text != "" && detail != "" {
		text += ": " + detail
	}
	return text
}

// change checks the values as a plan's are checked.
func (c *RunChanges) change() (controlstore.RunChange, error) {
	laid := gather.Overrides{Priority: c.Priority, StepOverrides: c.StepOverrides}
	if err := laid.Validate(); err != nil {
		return controlstore.RunChange{}, BadSetting(err)
	}
	out := controlstore.RunChange{Step: c.Step, Priority: c.Priority, Reason: c.Reason}
	out.Settings.StepOverrides = c.StepOverrides
	var err error
	out.MaxFailed, err = maxFailed(c.MaxFailed)
	return out, err
}

// maxFailed is a threshold as runs keep it; nil stays nil.
func maxFailed(text *string) (*string, error) {
	if text == nil {
		return nil, nil //nolint:nilnil // nothing was given
	}
	if *text == "" { // more likely a slip than the wish to have no threshold
		return nil, kernel.BadInput("max_failed is empty; none takes the threshold away")
	}
	limit, err := workqueue.ParseMaxFailed(*text)
	if err != nil {
		return nil, kernel.BadInput(fmt.Sprintf("max_failed is %q: %v", kernel.Cut(*text, kernel.MaxEchoed), err))
	}
	return &limit, nil
}
