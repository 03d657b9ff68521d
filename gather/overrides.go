package gather

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/order"
)

// Overrides are settings of one run that are laid over its plan: those of steps over every step, and then those of
// single steps. What is nil stays as the plan has it. Fields are called as in plans, here and in JSON.
type Overrides struct {
	Priority          *int    `json:"priority,omitempty" doc:"runs with a greater number go first" example:"10" placeholder:"N"`
	MaxFailed         *string `json:"max_failed,omitempty" doc:"pause when more items fail: a number like 500, or 1%; or none" example:"1%" placeholder:"N|P%"`
	FailFast          *string `json:"fail_fast,omitempty" doc:"pause when, of the first outcomes of a step, so many fail with one code permanently: 200/400 unless it says else; or off" example:"50/100" placeholder:"N/M|off"`
	Canary            *int    `json:"canary,omitempty" doc:"items of a spread sample that goes first; 0: none" example:"100" placeholder:"N"`
	CanaryAutoApprove *bool   `json:"canary_auto_approve,omitempty" doc:"let the others go by itself when no more of the sample failed than max_failed allows" example:"true" negatable:""`

	OrderBy    *string `json:"order_by,omitempty" doc:"items of the same value of this field go one at a time, in their order" example:"customer.id" placeholder:"FIELD"`
	Partitions *int    `json:"partitions,omitempty" doc:"with an order: values share so many lines, by their hash; 0: each has its own" example:"64" placeholder:"N"`
	OnFailure  *string `json:"on_failure,omitempty" doc:"with an order: continue, or stop, and what follows a failed item is not tried" example:"stop" placeholder:"WHAT"`

	Schema    json.RawMessage `json:"schema,omitempty" doc:"a JSON Schema that the items must fit" kong:"-"`
	Encoding  *string         `json:"encoding,omitempty" doc:"of the items' text: utf-8, latin-1, windows-1252, utf-16, utf-16le or utf-16be" example:"windows-1252" placeholder:"NAME"`
	Header    *bool           `json:"header,omitempty" doc:"CSV begins with the names of its columns (default: true); without, they are called as columns says, or column1, column2 and so on" example:"false" negatable:""`
	Delimiter *string         `json:"delimiter,omitempty" doc:"between fields of CSV: comma, semicolon, tab or bar; found by the first rows when absent" example:"semicolon" placeholder:"NAME"`
	Columns   []string        `json:"columns,omitempty" doc:"a column or field to keep, by its name in the input; without a header the names of all columns" example:"id" placeholder:"NAME"`
	Rename    []string        `json:"rename,omitempty" doc:"another name for a column or field" example:"kontonr=id" placeholder:"OLD=NEW"`
	Types     []string        `json:"types,omitempty" doc:"what a field becomes: number, text, bool or json" example:"balance=number" placeholder:"FIELD=TYPE"`
	Sort      *string         `json:"sort,omitempty" doc:"the field that the items are ordered by, whatever their order in the input" example:"balance" placeholder:"FIELD"`
	Desc      *bool           `json:"desc,omitempty" doc:"with sort: the greatest first" example:"true" negatable:""`

	OnInvalid *string `json:"on_invalid,omitempty" doc:"for items that do not fit the schema: reject, and nothing is started; or fail, and they fail without being sent" example:"fail" placeholder:"WHAT"`

	Contract *string `json:"contract,omitempty" doc:"when no item has a field that the service of a step requires: refuse, warn or off" example:"warn" placeholder:"WHAT"`

	workqueue.StepOverrides // of every step

	// Steps are those of single steps, by name. They come before the others.
	Steps map[string]*workqueue.StepOverrides `json:"steps,omitempty" doc:"settings of single steps, by name" kong:"-"`
}

// Validate returns a *FieldError for the first value that no plan may have. Whether values go together shows only with
// the plan: [Overrides.Over].
func (o *Overrides) Validate() error {
	if o.MaxFailed != nil {
		if _, err := workqueue.ParseMaxFailed(*o.MaxFailed); err != nil {
			return fieldError("max_failed", "%v; this is %.40q", err, *o.MaxFailed)
		}
	}
	if o.FailFast != nil {
		if _, err := workqueue.CanonicalFailFast(*o.FailFast); err != nil {
			return fieldError("fail_fast", "%v; this is %.40q", err, *o.FailFast)
		}
	}
	plan := Single("any")
	o.lay(plan)
	if err := plan.validateValues(); err != nil {
		return err
	}
	if o.OrderBy != nil {
		if _, err := readOrderBy(*o.OrderBy); err != nil {
			return fieldError("order_by", "%v; this is %.40q", err, *o.OrderBy)
		}
	}
	if o.OnFailure != nil {
		if _, err := ParseOnFailure(*o.OnFailure); err != nil {
			return fieldError("on_failure", "%v; this is %.40q", err, *o.OnFailure)
		}
	}
	if err := cmp.Or(o.checkPairs(), plan.Items.check(""), checkOverrides("", &o.StepOverrides)); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(o.Steps)) {
		if settings := o.Steps[name]; settings != nil {
			if err := checkOverrides("steps."+name+".", settings); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOverrides(prefix string, o *workqueue.StepOverrides) error {
	if name, problem := o.Check(); name != "" {
		return fieldError(prefix+name, "%s", problem)
	}
	return checkAllCodes(prefix, new(workqueue.StepSettings).Over(o))
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

// byName calls a step in the name of a field as the overrides of single steps do; the only step needs no name. Items
// have no part of their own.
func (p *Plan) byName(field string) string {
	if name, of := strings.CutPrefix(field, "items."); of {
		return name
	}
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
		plan.OnFailure = canonicalText(*o.OnFailure, ParseOnFailure)
	}
}

func (o *Overrides) lay(plan *Plan) {
	set(&plan.Priority, o.Priority)
	if o.MaxFailed != nil {
		plan.MaxFailed = canonicalText(*o.MaxFailed, workqueue.ParseMaxFailed)
	}
	if o.FailFast != nil {
		plan.FailFast = canonicalText(*o.FailFast, workqueue.CanonicalFailFast)
	}
	if o.Canary != nil {
		plan.Canary = *o.Canary
		plan.CanaryAutoApprove = plan.CanaryAutoApprove && plan.Canary != 0
	}
	set(&plan.CanaryAutoApprove, o.CanaryAutoApprove)
	o.layOrder(plan)
	o.layItems(plan)
	for i := range plan.Steps {
		s := &plan.Steps[i]
		s.StepSettings = s.StepSettings.Over(&o.StepOverrides)
		single := o.Steps[s.Name]
		if single != nil {
			s.StepSettings = s.StepSettings.Over(single)
		}
		if len(plan.Steps) > 1 && !s.ChunkAuto && (single == nil || single.ChunkTime == nil) {
			s.ChunkTime = 0 // of several steps it is for those whose size is found
		}
	}
}

// set changes a setting when there is a value for it.
func set[T any](setting, value *T) {
	if value != nil {
		*setting = *value
	}
}

// canonicalText returns the form that plans keep; what has none stays as it is, for Validate to refuse.
func canonicalText(text string, parse func(string) (string, error)) string {
	if form, err := parse(text); err == nil {
		return form
	}
	return text
}

// Set reads one setting from its text form, by the name that it has in plans. Codes come one by one; any other setting
// can be set once. The error is a *FieldError.
func (o *Overrides) Set(field, text string) error {
	return read(o.settings(), "", field, text)
}

func read(settings []setting, prefix, field, text string) error {
	names := make([]string, len(settings))
	for i, s := range settings {
		if s.field == field {
			if err := s.read(text); err != nil {
				return fieldError(prefix+field, "%v; this is %.40q", err, text)
			}
			return nil
		}
		names[i] = s.field
	}
	return fieldError(prefix+field, "there is no such setting; there are %s", strings.Join(names, ", "))
}

// SetStep reads one setting of a single step from its text form, STEP.SETTING=VALUE, as in compose.chunk=50. The
// setting has the name that it has in plans; the rest is as with Set.
func (o *Overrides) SetStep(text string) error {
	path, value, found := strings.Cut(text, "=")
	name, field, named := strings.Cut(path, ".")
	if !found || !named {
		return fieldError("set", "%.60q: want STEP.SETTING=VALUE, like compose.chunk=50", text)
	}
	if err := checkName("set", name, ""); err != nil {
		return err
	}
	if o.Steps == nil {
		o.Steps = map[string]*workqueue.StepOverrides{}
	}
	if o.Steps[name] == nil {
		o.Steps[name] = &workqueue.StepOverrides{}
	}
	return read(stepSettings(o.Steps[name]), "steps."+name+".", field, value)
}

// OverrideFields returns the names that Set knows.
func OverrideFields() []string {
	settings := new(Overrides).settings()
	names := make([]string, len(settings))
	for i, s := range settings {
		names[i] = s.field
	}
	return names
}

// setting is one setting and how it reads a text.
type setting struct {
	field string
	read  func(text string) error
}

func (o *Overrides) settings() []setting {
	return slices.Concat([]setting{
		{"priority", reading(&o.Priority, workqueue.WholeNumber)},
		{"max_failed", reading(&o.MaxFailed, workqueue.ParseMaxFailed)},
		{"fail_fast", reading(&o.FailFast, workqueue.CanonicalFailFast)},
		{"canary", reading(&o.Canary, workqueue.WholeNumber)},
		{"canary_auto_approve", reading(&o.CanaryAutoApprove, readTruth)},
		{"order_by", reading(&o.OrderBy, readOrderBy)},
		{"partitions", reading(&o.Partitions, workqueue.WholeNumber)},
		{"on_failure", reading(&o.OnFailure, ParseOnFailure)},
	}, o.itemSettings(), stepSettings(&o.StepOverrides))
}

// stepSettings reads each setting of a step by the type of its field.
func stepSettings(o *workqueue.StepOverrides) (all []setting) {
	for name, field := range o.Fields() {
		all = append(all, setting{name, readField(field)})
	}
	return all
}

func readField(field any) func(text string) error {
	switch into := field.(type) {
	case **workqueue.Adaptive:
		return reading(into, readText[workqueue.Adaptive])
	case **workqueue.Bytes:
		return reading(into, readText[workqueue.Bytes])
	case **workqueue.Duration:
		return reading(into, readText[workqueue.Duration])
	case **float64:
		return reading(into, workqueue.ParseRate)
	case **int:
		return reading(into, workqueue.WholeNumber)
	case *[]string:
		return adding(into)
	default:
		panic(fmt.Sprintf("gather: no text is read as a %T", field))
	}
}

var (
	errTwice   = errors.New("it is given twice")
	errNoTruth = errors.New("want true or false")
	errNoCode  = errors.New("want an error code")
)

func reading[T any](into **T, parse func(string) (T, error)) func(string) error {
	return func(text string) error {
		if *into != nil {
			return errTwice
		}
		value, err := parse(text)
		if err == nil {
			*into = &value
		}
		return err
	}
}

func adding(codes *[]string) func(string) error {
	return func(code string) error {
		if code == "" {
			return errNoCode
		}
		if slices.Contains(*codes, code) {
			return errTwice
		}
		*codes = append(*codes, code)
		return nil
	}
}

func readText[T any, P interface {
	*T
	UnmarshalText([]byte) error
}](text string) (value T, err error) {
	err = P(&value).UnmarshalText([]byte(text))
	return value, err
}

var errNoField = errors.New("want the name of a field, like customer or customer.id, or key")

func readOrderBy(text string) (string, error) {
	if (&order.Rule{By: text}).Validate() != nil {
		return "", errNoField
	}
	return text, nil
}

func readTruth(text string) (bool, error) {
	switch text {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, errNoTruth
}
