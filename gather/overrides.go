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

// Overrides are the settings of one run that override its plan, first those for all steps, then those for single
// steps. nil keeps the plan's value. Names are those of plans, here and in JSON.
type Overrides struct {
	Priority          *int    `json:"priority,omitempty" doc:"runs with a greater number go first" example:"10" placeholder:"N"`
	DoneBy            *string `json:"done_by,omitempty" doc:"its deadline, which its pace follows: 06:00 Europe/Berlin, a time like 2026-01-31T06:00:00Z, or none" example:"06:00 Europe/Berlin" placeholder:"TIME"`
	Gentle            *bool   `json:"gentle,omitempty" doc:"with done_by: only as many requests in flight as it needs" example:"true" negatable:""`
	MaxFailed         *string `json:"max_failed,omitempty" doc:"pause when more items fail: a number like 500, or 1%; or none" example:"1%" placeholder:"N|P%"`
	FailFast          *string `json:"fail_fast,omitempty" doc:"pause when N of a step's first M outcomes fail permanently with one code (200/400); or off" example:"50/100" placeholder:"N/M|off"`
	Canary            *int    `json:"canary,omitempty" doc:"items of a spread sample that goes first; 0: none" example:"100" placeholder:"N"`
	CanaryAutoApprove *bool   `json:"canary_auto_approve,omitempty" doc:"release the rest automatically if no more of the sample failed than max_failed allows" example:"true" negatable:""`

	OrderBy    *string `json:"order_by,omitempty" doc:"items of the same value of this field go one at a time, in their order" example:"customer.id" placeholder:"FIELD"`
	Partitions *int    `json:"partitions,omitempty" doc:"with an order: hash values into N lanes; 0: one lane per value" example:"64" placeholder:"N"`
	OnFailure  *string `json:"on_failure,omitempty" doc:"with an order: continue, or stop, and what follows a failed item is not tried" example:"stop" placeholder:"WHAT"`

	Schema    json.RawMessage `json:"schema,omitempty" doc:"a JSON Schema that the items must fit" kong:"-"`
	Encoding  *string         `group:"Items:" json:"encoding,omitempty" doc:"of the items' text: utf-8, latin-1, windows-1252, utf-16, utf-16le or utf-16be" example:"windows-1252" placeholder:"NAME"`
	Header    *bool           `group:"Items:" json:"header,omitempty" doc:"CSV begins with the names of its columns (default: true); without, they are called as columns says, or column1, column2 and so on" example:"false" negatable:""`
	Delimiter *string         `group:"Items:" json:"delimiter,omitempty" doc:"between fields of CSV: comma, semicolon, tab or bar; found by the first rows when absent" example:"semicolon" placeholder:"NAME"`
	Columns   []string        `group:"Items:" json:"columns,omitempty" doc:"a column or field to keep, by its name in the input; without a header the names of all columns" example:"id" placeholder:"NAME"`
	Rename    []string        `group:"Items:" json:"rename,omitempty" doc:"another name for a column or field" example:"kontonr=id" placeholder:"OLD=NEW"`
	Types     []string        `group:"Items:" json:"types,omitempty" doc:"what a field becomes: number, text, bool or json" example:"balance=number" placeholder:"FIELD=TYPE"`
	Sort      *string         `group:"Items:" json:"sort,omitempty" doc:"the field to order items by, regardless of input order" example:"balance" placeholder:"FIELD"`
	Desc      *bool           `group:"Items:" json:"desc,omitempty" doc:"with sort: the greatest first" example:"true" negatable:""`

	OnInvalid *string `group:"Items:" json:"on_invalid,omitempty" doc:"for items that do not fit the schema: reject, and nothing is started; or fail, and they fail without being sent" example:"fail" placeholder:"WHAT"`

	Contract *string `group:"Items:" json:"contract,omitempty" doc:"when no item has a field that the service of a step requires: reject, warn or off" example:"warn" placeholder:"WHAT"`

	workqueue.StepOverrides `group:"Settings of every step:"`

	// Steps overrides single steps by name and has precedence.
	Steps map[string]*workqueue.StepOverrides `json:"steps,omitempty" doc:"settings of single steps, by name" kong:"-"`
}

// Validate returns a *FieldError for the first value that no plan allows. [Overrides.Over] checks combinations.
func (o *Overrides) Validate() error {
	plan := Single("any")
	for _, s := range o.ofPlan(plan) {
		if s.check == nil {
			continue
		}
		if err := s.check(); err != nil {
			return err
		}
	}
	o.lay(plan)
	if o.DoneBy == nil {
		plan.Gentle = false // it goes with the done_by of the plan under it
	}
	if err := plan.validateValues(); err != nil {
		return err
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

// Over returns a copy of the plan with the overrides applied, or a *FieldError.
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

// byName converts a field's name from plans to overrides: with the step's name unless it is the only one.
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

// lay applies checked overrides to a plan. A new order replaces the plan's; new partitions remove its values.
func (o *Overrides) lay(plan *Plan) {
	if o.Canary != nil && *o.Canary == 0 {
		plan.CanaryAutoApprove = false
	}
	if o.OrderBy != nil {
		plan.Order = order.Rule{}
	}
	if o.Partitions != nil {
		plan.Order.Values = nil
	}
	for _, s := range o.ofPlan(plan) {
		s.lay()
	}
	for i := range plan.Steps {
		s := &plan.Steps[i]
		s.StepSettings = s.StepSettings.Over(&o.StepOverrides)
		single := o.Steps[s.Name]
		if single != nil {
			s.StepSettings = s.StepSettings.Over(single)
		}
		if len(plan.Steps) > 1 && !s.ChunkAuto && (single == nil || single.ChunkTime == nil) {
			s.ChunkTime = 0 // with several steps, applies only to those with chunk: auto
		}
	}
}

// Set sets a setting from text, by its name in plans. Codes add up, others are set once. The error is a *FieldError.
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

// SetStep is Set for a single step: STEP.SETTING=VALUE, such as compose.chunk=50.
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

// OverrideFields returns the names that Set accepts.
func OverrideFields() []string {
	settings := new(Overrides).settings()
	names := make([]string, len(settings))
	for i, s := range settings {
		names[i] = s.field
	}
	return names
}

type setting struct {
	field string
	read  func(text string) error
	check func() error // of a value from JSON; nil: applying it finds errors
	lay   func()       // applies it to a plan, if set
}

func (o *Overrides) settings() []setting {
	return append(o.ofPlan(&Plan{}), stepSettings(&o.StepOverrides)...)
}

func (o *Overrides) ofPlan(p *Plan) []setting {
	return []setting{
		laid("priority", &o.Priority, &p.Priority, workqueue.WholeNumber),
		worded("done_by", &o.DoneBy, &p.DoneBy, workqueue.ParseDoneBy),
		laid("gentle", &o.Gentle, &p.Gentle, readTruth),
		worded("max_failed", &o.MaxFailed, &p.MaxFailed, workqueue.ParseMaxFailed),
		worded("fail_fast", &o.FailFast, &p.FailFast, workqueue.CanonicalFailFast),
		laid("canary", &o.Canary, &p.Canary, workqueue.WholeNumber),
		laid("canary_auto_approve", &o.CanaryAutoApprove, &p.CanaryAutoApprove, readTruth),
		worded("order_by", &o.OrderBy, &p.Order.By, readOrderBy),
		laid("partitions", &o.Partitions, &p.Order.Partitions, workqueue.WholeNumber),
		worded("on_failure", &o.OnFailure, &p.OnFailure, ParseOnFailure),
		{field: "schema", read: o.readSchema, lay: func() {
			if len(o.Schema) > 0 {
				p.Items.Schema = o.Schema
			}
		}},
		worded("on_invalid", &o.OnInvalid, &p.Items.OnInvalid, parseOnInvalid),
		worded("contract", &o.Contract, &p.Items.Contract, parseContract),
		worded("encoding", &o.Encoding, &p.Items.Encoding, parseEncoding),
		{field: "header", read: reading(&o.Header, readTruth), lay: func() {
			if o.Header != nil {
				p.Items.Header = canonicalHeader(o.Header)
			}
		}},
		worded("delimiter", &o.Delimiter, &p.Items.Delimiter, ParseDelimiter),
		listed("columns", &o.Columns, func(names []string) { p.Items.Columns = names }),
		listed("rename", &o.Rename, func(pairs []string) { p.Items.Rename = byName(pairs) }),
		listed("types", &o.Types, func(pairs []string) { p.Items.Types = byName(pairs) }),
		laid("sort", &o.Sort, &p.Items.Sort, func(text string) (string, error) { return text, nil }),
		laid("desc", &o.Desc, &p.Items.Desc, readTruth),
	}
}

// laid is a setting that plans store unchanged.
func laid[T any](field string, value **T, kept *T, parse func(string) (T, error)) setting {
	return setting{field: field, read: reading(value, parse), lay: func() {
		if *value != nil {
			*kept = **value
		}
	}}
}

// worded is a setting that plans store in the form returned by parse; the default, stored as "", has a word.
func worded(field string, value **string, kept *string, parse func(string) (string, error)) setting {
	said := func(text string) (string, error) {
		form, err := parse(text)
		return cmp.Or(form, text), err
	}
	return setting{field, reading(value, said), func() error {
		if *value == nil {
			return nil
		}
		if _, err := parse(**value); err != nil {
			return fieldError(field, "%v; this is %.40q", err, **value)
		}
		return nil
	}, func() {
		if *value != nil {
			*kept, _ = parse(**value) // already checked
		}
	}}
}

func listed(field string, values *[]string, lay func([]string)) setting {
	return setting{field: field, read: adding(values), lay: func() {
		if len(*values) > 0 {
			lay(*values)
		}
	}}
}

func stepSettings(o *workqueue.StepOverrides) (all []setting) {
	for name, field := range o.Fields() {
		all = append(all, setting{field: name, read: readField(field)})
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
