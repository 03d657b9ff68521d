package gather

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue/order"
)

// Overrides are settings of one run that are laid over its plan: those of steps over every step, and then those of
// single steps. What is nil stays as the plan has it. Fields are called as in plans, here and in JSON.
type Overrides struct {
	Priority   *int    `json:"priority,omitempty" doc:"runs with a greater number go first"`
	MaxFailed  *string `json:"max_failed,omitempty" doc:"failures that pause the run: more than 500, or 1%; or none"`
	Canary     *int    `json:"canary,omitempty" doc:"items of a spread sample that goes first; 0: none"`
	CanaryAuto *bool   `json:"canary_auto,omitempty" doc:"a sample within max_failed releases the others"`

	OrderBy    *string `json:"order_by,omitempty" doc:"items of the same value of this field go one after the other"`
	Partitions *int    `json:"partitions,omitempty" doc:"values share so many lines, by their hash; 0: each has its own"`
	OnFailure  *string `json:"on_failure,omitempty" doc:"continue, or stop: what follows a failed item is not tried"`

	StepOverrides // of every step

	// Steps are those of single steps, by name. They come before the others.
	Steps map[string]*StepOverrides `json:"steps,omitempty" doc:"settings of single steps, by name"`
}

// StepOverrides are settings of steps that one run has otherwise.
type StepOverrides struct {
	Chunk        *Adaptive `json:"chunk,omitempty" doc:"items in a request, 1 to 8192, or auto"`
	ChunkBytes   *Bytes    `json:"chunk_bytes,omitempty" doc:"payload bytes in a request; 0: what the node allows"`
	ChunkTime    *Duration `json:"chunk_time,omitempty" doc:"what a request should take, with chunk auto" example:"5s"`
	InFlight     *Adaptive `json:"in_flight,omitempty" doc:"requests out at once, 1 to 10000, or auto"`
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
	if err := plan.validateValues(); err != nil {
		return err
	}
	if err := plan.Steps[0].validateValues(""); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(o.Steps)) {
		step := defaultStep()
		if settings := o.Steps[name]; settings != nil {
			settings.lay(&step)
		}
		if err := step.validateValues("steps." + name + "."); err != nil {
			return err
		}
	}
	return nil
}

// Over returns the plan with the settings laid over it, or a *FieldError. The plan stays as it is.
func (o *Overrides) Over(plan *Plan) (*Plan, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(o.Steps)) {
		if !slices.ContainsFunc(plan.Steps, func(s Step) bool { return s.Name == name }) {
			return nil, fieldError("steps."+name, "the plan has no such step; it has %s", namesOf(plan.Steps))
		}
	}
	out := plan.clone()
	o.lay(out)
	if o.ChunkTime != nil && !slices.ContainsFunc(out.Steps, func(s Step) bool { return s.ChunkTime != 0 }) {
		return nil, fieldError("chunk_time", "it goes with chunk: auto only, and no step of the plan has that")
	}
	err := out.Validate()
	if field, ok := errors.AsType[*FieldError](err); ok {
		field.Field = out.byName(field.Field)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// byName calls a step in the name of a field as the overrides of single steps do; the only step needs no name.
func (p *Plan) byName(field string) string {
	for i := range p.Steps {
		rest, found := strings.CutPrefix(field, stepField(i)+".")
		switch {
		case !found:
		case len(p.Steps) == 1:
			return rest
		default:
			return "steps." + p.Steps[i].Name + "." + rest
		}
	}
	return field
}

// layOrder puts another order in the place of the plan's. Values that the plan lists are of its own order.
func (o *Overrides) layOrder(plan *Plan) {
	if o.OrderBy != nil {
		plan.Order = order.Rule{By: *o.OrderBy}
	}
	if o.Partitions != nil {
		plan.Order.Partitions, plan.Order.Values = *o.Partitions, nil
	}
	if o.OnFailure != nil {
		plan.OnFailure = *o.OnFailure
		if canonical, err := ParseOnFailure(*o.OnFailure); err == nil {
			plan.OnFailure = canonical
		}
	}
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
	o.layOrder(plan)
	for i := range plan.Steps {
		s := &plan.Steps[i]
		o.StepOverrides.lay(s)
		single := o.Steps[s.Name]
		if single != nil {
			single.lay(s)
		}
		if len(plan.Steps) > 1 && !s.ChunkAuto && (single == nil || single.ChunkTime == nil) {
			s.ChunkTime = 0 // of several steps it is for those whose size is found
		}
	}
}

// lay lays the settings over a step.
func (o *StepOverrides) lay(s *Step) {
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
