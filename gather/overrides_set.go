package gather

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

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
		o.Steps = map[string]*StepOverrides{}
	}
	if o.Steps[name] == nil {
		o.Steps[name] = &StepOverrides{}
	}
	return read(o.Steps[name].settings(), "steps."+name+".", field, value)
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
	return append([]setting{
		{"priority", reading(&o.Priority, wholeNumber)},
		{"max_failed", reading(&o.MaxFailed, ParseMaxFailed)},
		{"canary", reading(&o.Canary, wholeNumber)},
		{"canary_auto", reading(&o.CanaryAuto, readTruth)},
		{"order_by", reading(&o.OrderBy, readOrderBy)},
		{"partitions", reading(&o.Partitions, wholeNumber)},
		{"on_failure", reading(&o.OnFailure, ParseOnFailure)},
	}, o.StepOverrides.settings()...)
}

func (o *StepOverrides) settings() []setting {
	return []setting{
		{"chunk", reading(&o.Chunk, readText[Adaptive])},
		{"chunk_bytes", reading(&o.ChunkBytes, readText[Bytes])},
		{"chunk_time", reading(&o.ChunkTime, readText[Duration])},
		{"in_flight", reading(&o.InFlight, readText[Adaptive])},
		{"rate", reading(&o.Rate, readRate)},
		{"max_attempts", reading(&o.MaxAttempts, wholeNumber)},
		{"timeout", reading(&o.Timeout, readText[Duration])},
		{"retry_backoff", reading(&o.RetryBackoff, readText[Duration])},
		{"max_backoff", reading(&o.MaxBackoff, readText[Duration])},
		{"retry_codes", adding(&o.RetryCodes)},
		{"never_retry", adding(&o.NeverRetry)},
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

// readRate takes plain decimal numbers only: 0x1p3, 1_000 and inf are numbers to Go as well.
func readRate(text string) (float64, error) {
	for _, c := range text {
		if (c < '0' || c > '9') && c != '.' && c != '-' {
			return math.NaN(), errNoRate
		}
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN(), errNoRate
	}
	return rate, nil
}
