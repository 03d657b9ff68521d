package gather

import (
	"errors"
	"strings"
	"time"
)

// Overrides are settings of one run that are laid over its plan, those of steps over every step. What is nil stays as
// the plan has it. Fields are called as in plans, here and in JSON.
type Overrides struct {
	Priority   *int    `json:"priority,omitempty" doc:"runs with a greater number go first"`
	MaxFailed  *string `json:"max_failed,omitempty" doc:"failures that pause the run: more than 500, or 1%; or none"`
	Canary     *int    `json:"canary,omitempty" doc:"items of a spread sample that goes first; 0: none"`
	CanaryAuto *bool   `json:"canary_auto,omitempty" doc:"a sample within max_failed releases the others"`

	Chunk        *Adaptive `json:"chunk,omitempty" doc:"items in a request, 1 to 8192, or auto" example:"auto"`
	ChunkBytes   *Bytes    `json:"chunk_bytes,omitempty" doc:"payload bytes in a request; 0: what the node allows"`
	ChunkTime    *Duration `json:"chunk_time,omitempty" doc:"what a request should take, with chunk auto" example:"5s"`
	InFlight     *Adaptive `json:"in_flight,omitempty" doc:"requests out at once, 1 to 10000, or auto" example:"auto"`
	Rate         *float64  `json:"rate,omitempty" doc:"items a second; 0: no limit"`
	MaxAttempts  *int      `json:"max_attempts,omitempty" doc:"how often an item that fails is tried, in all"`
	Timeout      *Duration `json:"timeout,omitempty" doc:"for the reply to a request that a service has" example:"12m"`
	RetryBackoff *Duration `json:"retry_backoff,omitempty" doc:"before the second attempt; doubled later" example:"1s"`
	MaxBackoff   *Duration `json:"max_backoff,omitempty" doc:"the longest such wait" example:"5m"`
	RetryCodes   []string  `json:"retry_codes,omitempty" nullable:"false" doc:"error codes that are tried again"`
	NeverRetry   []string  `json:"never_retry,omitempty" nullable:"false" doc:"error codes that are not"`
}

// Validate returns a *FieldError for the first value that no plan may have. Whether values go together shows only with
// the plan: [Overrides.Over].
func (o *Overrides) Validate() error {
	plan := Single("any")
	o.lay(plan)
	err := plan.validateValues()
	if err == nil {
		err = plan.Steps[0].validateValues("")
	}
	return err
}

// Over returns the plan with the settings laid over it, or a *FieldError. The plan stays as it is.
func (o *Overrides) Over(plan *Plan) (*Plan, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	out := plan.clone()
	o.lay(out)
	err := out.Validate()
	var field *FieldError
	if errors.As(err, &field) && len(out.Steps) == 1 { // the only step needs no number
		field.Field = strings.TrimPrefix(field.Field, stepField(0)+".")
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (o *Overrides) lay(plan *Plan) {
	set(&plan.Priority, o.Priority)
	if o.MaxFailed != nil {
		plan.MaxFailed = canonicalMaxFailed(*o.MaxFailed)
	}
	if o.Canary != nil {
		plan.Canary = *o.Canary
		plan.CanaryAuto = plan.CanaryAuto && plan.Canary != 0
	}
	set(&plan.CanaryAuto, o.CanaryAuto)
	for i := range plan.Steps {
		o.layStep(&plan.Steps[i])
	}
}

func (o *Overrides) layStep(s *Step) {
	set((*Duration)(&s.Timeout), o.Timeout)
	if o.Chunk != nil {
		s.setChunk(*o.Chunk)
	}
	set((*Bytes)(&s.ChunkBytes), o.ChunkBytes)
	set((*Duration)(&s.ChunkTime), o.ChunkTime)
	if o.InFlight != nil {
		s.setInFlight(*o.InFlight)
	}
	set(&s.Rate, o.Rate)
	set(&s.MaxAttempts, o.MaxAttempts)
	if o.RetryBackoff != nil {
		s.RetryBackoff = time.Duration(*o.RetryBackoff)
		s.MaxBackoff = max(s.MaxBackoff, s.RetryBackoff)
	}
	set((*Duration)(&s.MaxBackoff), o.MaxBackoff)
	if o.RetryCodes != nil {
		s.RetryCodes = append([]string(nil), o.RetryCodes...)
	}
	if o.NeverRetry != nil {
		s.NeverRetry = append([]string(nil), o.NeverRetry...)
	}
}

// set changes a setting when there is a value for it.
func set[T any](setting, value *T) {
	if value != nil {
		*setting = *value
	}
}

// canonicalMaxFailed returns the form that plans keep; what has none stays as it is, for Validate to refuse.
func canonicalMaxFailed(text string) string {
	if canonical, err := ParseMaxFailed(text); err == nil {
		return canonical
	}
	return text
}
