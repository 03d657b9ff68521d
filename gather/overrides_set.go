package gather

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/order"
)

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
		{"canary", reading(&o.Canary, workqueue.WholeNumber)},
		{"canary_auto", reading(&o.CanaryAuto, readTruth)},
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
