package gather

import (
	"encoding"
	"errors"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue"
)

// wrong returns an error that says what is wanted, and what the value is.
func wrong(v strictyaml.Value, want error) error { return v.Fail("%v; this is %s", want, v.Kind()) }

var errNoText = errors.New("want text; put it in quotes if it looks like something else")

// text reads text, which may be empty: that is the same as not said.
func text(into *string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		text, ok := v.Text()
		if !ok {
			return wrong(v, errNoText)
		}
		*into = text
		return nil
	}
}

func texts(into *[]string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		return v.List(func(v strictyaml.Value) error {
			var s string
			err := text(&s)(v)
			*into = append(*into, s)
			return err
		})
	}
}

// number reads a whole number of any size: what is allowed, Validate knows.
func number(into *int) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		digits, _ := v.Number()
		n, err := workqueue.WholeNumber(digits)
		if err != nil {
			return wrong(v, err)
		}
		*into = n
		return nil
	}
}

// settingOf reads a setting of a step by the type of its field.
func settingOf(field any) func(strictyaml.Value) error {
	switch into := field.(type) {
	case **workqueue.Adaptive:
		return given(into, adaptive)
	case **workqueue.Bytes:
		return given(into, func(n *workqueue.Bytes) func(strictyaml.Value) error { return size((*int)(n)) })
	case **workqueue.Duration:
		return given(into, func(d *workqueue.Duration) func(strictyaml.Value) error { return duration((*time.Duration)(d)) })
	case **float64:
		return given(into, rate)
	case **int:
		return given(into, number)
	case *[]string:
		return texts(into)
	default:
		panic(fmt.Sprintf("gather: no YAML is read as a %T", field))
	}
}

func adaptive(into *workqueue.Adaptive) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		said, ok := v.Number()
		if word, _ := v.Text(); word == "auto" {
			said, ok = word, true
		}
		return parsed(v, said, ok, into)
	}
}

// parsed reads what is said where it is of a kind that may say it.
func parsed(v strictyaml.Value, said string, ok bool, into encoding.TextUnmarshaler) error {
	if !ok {
		said = ""
	}
	if err := into.UnmarshalText([]byte(said)); err != nil {
		return wrong(v, err)
	}
	return nil
}

func rate(into *float64) func(strictyaml.Value) error {
	return func(v strictyaml.Value) (err error) {
		digits, _ := v.Number()
		if *into, err = workqueue.ParseRate(digits); err != nil {
			return wrong(v, err)
		}
		return nil
	}
}

// size reads a number of bytes.
func size(into *int) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		said, ok := v.Plain()
		return parsed(v, said, ok, (*workqueue.Bytes)(into))
	}
}

func failures(into *string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) (err error) {
		said, ok := v.Plain()
		if ok {
			*into, err = workqueue.ParseMaxFailed(said)
		}
		if !ok || err != nil {
			return wrong(v, workqueue.ErrMaxFailed)
		}
		return nil
	}
}

func guard(into *string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) (err error) {
		said, ok := v.Plain()
		if ok {
			*into, err = workqueue.CanonicalGuard(said)
		}
		if !ok || err != nil {
			return wrong(v, workqueue.ErrGuard)
		}
		return nil
	}
}

func duration(into *time.Duration) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		said, ok := v.Text()
		return parsed(v, said, ok, (*workqueue.Duration)(into))
	}
}
