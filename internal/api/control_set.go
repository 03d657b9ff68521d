package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/workqueue"
	controlstore "github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Sizing is a number, or auto: nodes find it. In JSON 500 or "auto".
type Sizing struct{ gather.Adaptive }

// Schema tells huma of both forms.
func (Sizing) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeInteger}, {Type: huma.TypeString}},
		Description: "a number, or auto", Examples: []any{500, "auto"}}
}

// RunChanges is new settings of a run that is under way or has ended. What is left out stays.
type RunChanges struct {
	Step         string           `json:"step,omitempty" maxLength:"64" doc:"whose settings; absent: of the only one"`
	Priority     *int             `json:"priority,omitempty" doc:"runs with a greater number go first"`
	MaxFailed    *string          `json:"max_failed,omitempty" doc:"more failures pause the run: 500, 1% or none"`
	Chunk        *Sizing          `json:"chunk,omitempty" doc:"items in a request, 1 to 8192, or auto"`
	ChunkBytes   *int             `json:"chunk_bytes,omitempty" doc:"wanted bytes of a request; 0: what the node allows"`
	ChunkTime    *gather.Duration `json:"chunk_time,omitempty" doc:"what a request should take, with chunk auto"`
	InFlight     *Sizing          `json:"in_flight,omitempty" doc:"requests out at once, 1 to 10000, or auto"`
	Rate         *float64         `json:"rate,omitempty" doc:"items a second; 0: no limit"`
	MaxAttempts  *int             `json:"max_attempts,omitempty" doc:"how often an item that fails is tried, in all"`
	RetryBackoff *gather.Duration `json:"retry_backoff,omitempty" doc:"before the second attempt" example:"1s"`
	MaxBackoff   *gather.Duration `json:"max_backoff,omitempty" doc:"the longest such wait" example:"5m"`
	Timeout      *gather.Duration `json:"timeout,omitempty" doc:"for the reply to a request that a service has"`
	RetryCodes   []string         `json:"retry_codes,omitempty" nullable:"false" doc:"codes that are tried again, or none"`
	NeverRetry   []string         `json:"never_retry,omitempty" nullable:"false" doc:"codes that never are, or none"`
	Reason       string           `json:"reason,omitempty" maxLength:"500" doc:"why, for the audit log"`
}

// noCodes in a list of codes is no code.
const noCodes = "none"

// codes is a list of codes as the store takes it; nil when it was left out.
func codes(given []string) *[]string {
	if given == nil {
		return nil
	}
	if len(given) == 1 && given[0] == noCodes {
		given = []string{}
	}
	return &given
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
	RunPath
	Actor
	Body RunChanges
}

func (s *Server) registerSet(api huma.API) {
	register(s, api, byOperator(huma.Operation{
		OperationID: "set-run", Method: http.MethodPost, Path: "/runs/{run}/settings",
		Summary: "Change settings of a run while it runs",
	}), s.setRun)
}

func (s *Server) setRun(ctx context.Context, in *setRunInput) (ChangedRun, error) {
	change, err := in.Body.change()
	if err := cmp.Or(err, s.mayChange(in.Name)); err != nil {
		return ChangedRun{}, err
	}
	if change.Run, err = inspect.New(s.store).Resolve(ctx, in.Run); err != nil {
		return ChangedRun{}, err
	}
	change.Actor = in.Name
	done, err := s.engine.SetRun(ctx, change)
	if err != nil {
		return ChangedRun{}, seen(err, "tranche run show "+change.Run.String())
	}
	return ChangedRun{Run: change.Run, Step: done.Step, Before: done.Before, After: done.After,
		Paused: pausedText(done.Hold, done.HoldDetail)}, nil
}

// pausedText says why a run is paused; nothing when it is not.
func pausedText(hold controlstore.Hold, detail string) string {
	text := map[controlstore.Hold]string{
		controlstore.HoldOperator: "by an operator", controlstore.HoldThreshold: "for its threshold",
		controlstore.HoldCanary: "until its canary is approved",
	}[hold]
	if text != "" && detail != "" {
		text += ": " + detail
	}
	return text
}

// change checks the values as a plan's are checked.
func (c *RunChanges) change() (controlstore.RunChange, error) {
	laid := gather.Overrides{Priority: c.Priority, StepOverrides: gather.StepOverrides{ChunkTime: c.ChunkTime,
		Rate: c.Rate, MaxAttempts: c.MaxAttempts, RetryBackoff: c.RetryBackoff, MaxBackoff: c.MaxBackoff,
		Timeout: c.Timeout}}
	set := controlstore.StepChange{ChunkBytes: c.ChunkBytes, ChunkTime: span(c.ChunkTime), Rate: c.Rate,
		MaxAttempts: c.MaxAttempts, RetryBackoff: span(c.RetryBackoff), MaxBackoff: span(c.MaxBackoff),
		Timeout: span(c.Timeout), RetryCodes: codes(c.RetryCodes), NeverRetry: codes(c.NeverRetry)}
	if set.RetryCodes != nil {
		laid.RetryCodes = *set.RetryCodes
	}
	if set.NeverRetry != nil {
		laid.NeverRetry = *set.NeverRetry
	}
	if c.ChunkBytes != nil {
		bytes := gather.Bytes(*c.ChunkBytes)
		laid.ChunkBytes = &bytes
	}
	if c.Chunk != nil {
		laid.Chunk = &c.Chunk.Adaptive
		set.Chunk, set.ChunkAuto = sized(c.Chunk)
	}
	if c.InFlight != nil {
		laid.InFlight = &c.InFlight.Adaptive
		set.InFlight, set.InFlightAuto = sized(c.InFlight)
	}
	if err := laid.Validate(); err != nil {
		return controlstore.RunChange{}, badSetting(err)
	}
	out := controlstore.RunChange{Step: c.Step, Settings: set, Priority: c.Priority, Reason: c.Reason}
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
		return nil, &inputError{"max_failed is empty; none takes the threshold away"}
	}
	limit, err := gather.ParseMaxFailed(*text)
	if err != nil {
		return nil, &inputError{fmt.Sprintf("max_failed is %q: %v", cut(*text, maxEchoed), err)}
	}
	return &limit, nil
}

// sized is a size as the store takes it.
func sized(s *Sizing) (n *int, auto bool) {
	if s.Auto {
		return nil, true
	}
	return &s.Value, false
}

func span(d *gather.Duration) *time.Duration { return (*time.Duration)(d) }
