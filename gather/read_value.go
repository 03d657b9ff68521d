package gather

import (
	"errors"
	"time"

	"github.com/tranchehq/tranche/gather/strictyaml"
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
		n, err := wholeNumber(digits)
		if err != nil {
			return wrong(v, err)
		}
		*into = n
		return nil
	}
}

func adaptive(into **Adaptive) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		*into = &Adaptive{}
		said, ok := v.Number()
		if word, _ := v.Text(); word == auto {
			said, ok = word, true
		}
		if !ok || (*into).UnmarshalText([]byte(said)) != nil {
			return wrong(v, errNoAdaptive)
		}
		return nil
	}
}

var errNoRate = errors.New("want items a second as a number like 1000 or 0.5")

func rate(into *float64) func(strictyaml.Value) error {
	return func(v strictyaml.Value) (err error) {
		digits, ok := v.Number()
		if !ok {
			return wrong(v, errNoRate)
		}
		if *into, err = readRate(digits); err != nil {
			return wrong(v, err)
		}
		return nil
	}
}

// size reads a number of bytes.
func size(into *int) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		said, ok := v.Plain()
		if !ok || (*Bytes)(into).UnmarshalText([]byte(said)) != nil {
			return wrong(v, errNoSize)
		}
		return nil
	}
}

func failures(into *string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) (err error) {
		said, ok := v.Plain()
		if ok {
			*into, err = ParseMaxFailed(said)
		}
		if !ok || err != nil {
			return wrong(v, errFailures)
		}
		return nil
	}
}

func duration(into *time.Duration) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		said, ok := v.Text()
		if !ok || (*Duration)(into).UnmarshalText([]byte(said)) != nil {
			return wrong(v, errNoDuration)
		}
		return nil
	}
}
