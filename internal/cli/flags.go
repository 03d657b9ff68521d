package cli

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/go-json-experiment/json"

	"github.com/tranchehq/tranche/workqueue"
)

// RefuseBytes refuses arguments that are not UTF-8, because sending them would change them.
func RefuseBytes(args []string) error {
	for _, arg := range args {
		if !utf8.ValidString(arg) {
			return &usageError{fmt.Sprintf("%q is not UTF-8; what is not text can come in a file only", Short(arg, 100))}
		}
	}
	return nil
}

func isEmptyText(v reflect.Value) bool {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return false
		}
		v = v.Elem()
	}
	return v.Kind() == reflect.String && v.Len() == 0
}

// CheckValues refuses empty arguments and flags, which probably come from an unset variable: a name or an idempotency
// key must not get lost that way. It also enforces bounds in tags, like within:"1,500" and within:"0s,".
func CheckValues(line *kong.Context) error {
	for _, at := range line.Path {
		var given *kong.Value
		switch {
		case at.Resolved: // from a file
		case at.Positional != nil:
			given = at.Positional
		case at.Flag != nil && at.Flag.Name != "reason":
			given = at.Flag.Value
		}
		if given != nil && given.Tag.Type != limitType && isEmptyText(given.Target) {
			return &usageError{fmt.Sprintf("%s is empty; see: %s --help", given.ShortSummary(),
				line.Selected().FullPath())}
		}
	}
	for _, flag := range line.Flags() {
		if err := checkBounds(flag.Value); err != nil {
			return err
		}
	}
	return nil
}

func checkBounds(v *kong.Value) error {
	given := reflect.Indirect(v.Target)
	if v.Tag.Type == limitType || !v.Set || !given.IsValid() {
		return nil
	}
	if ok, want := within(v.Tag, given); !ok {
		return &usageError{fmt.Sprintf("%s must be %s, got %v", v.ShortSummary(), want, given.Interface())}
	}
	return nil
}

// within reports whether a value is within the bounds of a tag, and describes them.
func within(tag *kong.Tag, v reflect.Value) (ok bool, want string) {
	low, high, bounded := strings.Cut(tag.Get("within"), ",")
	if !bounded {
		return true, ""
	}
	most, want := math.Inf(1), low+" or more"
	if high != "" {
		most, want = bound(high), low+" to "+high
	}
	n := math.NaN()
	switch {
	case v.CanInt():
		n = float64(v.Int())
	case v.CanFloat():
		n = v.Float()
	}
	return n >= bound(low) && n <= most, want
}

func bound(text string) float64 {
	if d, err := time.ParseDuration(text); err == nil {
		return float64(d)
	}
	n, _ := strconv.ParseFloat(text, 64) // a tag has a number
	return n
}

const limitType = "limit"

// Limits parses pointer flags with the tag type:"limit": a value, or the word of the tag off, which means zero, no
// limit. The tag within has bounds, and like an example.
func Limits() kong.Option {
	return kong.NamedMapper(limitType, kong.MapperFunc(func(line *kong.DecodeContext, target reflect.Value) error {
		var text string
		if err := line.Scan.PopValueInto(limitType, &text); err != nil {
			return err
		}
		tag, value := line.Value.Tag, reflect.New(target.Type().Elem())
		if text != tag.Get("off") {
			err := setLimit(value.Interface(), text)
			if ok, want := within(tag, value.Elem()); err != nil || !ok || value.Elem().IsZero() {
				return fmt.Errorf("%.100q is not %s, or %s", text, strings.TrimSpace(tag.Get("like")+" "+want), tag.Get("off"))
			}
		}
		target.Set(value)
		return nil
	}))
}

func setLimit(to any, text string) (err error) {
	switch to := to.(type) {
	case *string:
		if *to = text; text == "" {
			return errors.New("empty")
		}
		return nil
	case encoding.TextUnmarshaler:
		return to.UnmarshalText([]byte(text))
	case *int:
		*to, err = strconv.Atoi(text)
	case *int64:
		*to, err = strconv.ParseInt(text, 10, 64)
	case *float64:
		*to, err = strconv.ParseFloat(text, 64)
	default:
		err = fmt.Errorf("a limit of type %T", to)
	}
	return err
}

// PastTimes parses times on the command line by [PastTime].
func PastTimes() kong.Option {
	return kong.TypeMapper(reflect.TypeFor[time.Time](), kong.MapperFunc(
		func(line *kong.DecodeContext, target reflect.Value) error {
			var text string
			if err := line.Scan.PopValueInto("time", &text); err != nil {
				return err
			}
			at, err := PastTime(text)
			target.Set(reflect.ValueOf(at))
			return err
		}))
}

// PastTime parses a duration before now, a date, or a time with or without zone.
func PastTime(text string) (at time.Time, err error) {
	if back, err := time.ParseDuration(text); err == nil && back >= 0 {
		return time.Now().Add(-back), nil
	}
	for _, layout := range []string{
		time.DateOnly, time.DateTime, "2006-01-02T15:04:05", "2006-01-02 15:04", time.RFC3339,
	} {
		if at, err = time.ParseInLocation(layout, text, time.Local); err == nil {
			break
		}
	}
	switch {
	case err != nil:
		return at, fmt.Errorf("invalid time %q; use 90m, 24h, 2026-01-31 or 2026-01-31T15:04:05Z", text)
	case at.IsZero(): // would mean none
		return at, fmt.Errorf("%q is too long ago for anything to be recorded; give a later time, or leave the flag out for "+
			"no bound", text)
	}
	return at, nil
}

// DoneBy is a time of day on the clock of this machine as the next such time; other text stays.
func DoneBy(text *string) *string {
	if text == nil {
		return nil
	}
	if at, err := workqueue.NextTimeOfDay(*text, time.Local, time.Now()); err == nil {
		return new(at.Format(time.RFC3339))
	}
	return text
}

// Fill copies a command's flags into the request's fields of the same names, in JSON or in Go. An unknown name is an
// error: flags not to send have json:"-".
func Fill(request, flags any) error {
	text, err := json.Marshal(flags, json.OmitZeroStructFields(true))
	if err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	err = json.Unmarshal(text, request, json.MatchCaseInsensitiveNames(true), json.RejectUnknownMembers(true))
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	return nil
}
