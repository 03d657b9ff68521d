package cli

import (
	"fmt"
	"reflect"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"
)

// RefuseEmpty refuses an argument or flag that was given as an empty text: more likely than not it was to come from a
// variable that is not set. A run without a name, or a key that protects from starting twice, must not get lost so.
func RefuseEmpty(line *kong.Context) error {
	for _, at := range line.Path {
		var given *kong.Value
		switch {
		case at.Resolved: // from a file
		case at.Positional != nil:
			given = at.Positional
		case at.Flag != nil && at.Flag.Name != "reason":
			given = at.Flag.Value
		}
		if given != nil && isEmptyText(given.Target) {
			return &usageError{fmt.Sprintf("%s is empty; say what is meant; see: %s --help", given.ShortSummary(),
				line.Selected().FullPath())}
		}
	}
	return nil
}

// RefuseBytes refuses words that are not UTF-8: on their way to the server they would become others.
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

// ShortID is the time in an id, to the millisecond: enough to name a run.
func ShortID(id string) string { return id[:min(len(id), 13)] }

// OrDash is a text, or a dash for none.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return Inert(s)
}

// Rate writes items a second.
func Rate(perSecond float64) string {
	if perSecond <= 0 {
		return "-"
	}
	return Pace(perSecond) + "/s"
}

// PerItem writes the time that one item takes.
func PerItem(millis float64) string {
	switch d := time.Duration(millis * float64(time.Millisecond)); {
	case d <= 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", max(d.Microseconds(), 1))
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", millis)
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	default:
		return Span(d)
	}
}

// Plural is a number of things.
func Plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%s %ss", Count(n), noun)
}

// Gibibytes writes an amount of bytes.
func Gibibytes(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

// LimitText is a limit as a person reads it.
func LimitText(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// SizeOrNone writes a size with the largest unit that divides it.
func SizeOrNone(n int64) string {
	if n == 0 {
		return ""
	}
	for i, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := int64(1) << (10 * (4 - i)); n%size == 0 {
			return strconv.FormatInt(n/size, 10) + unit
		}
	}
	return Count(n)
}

// MomentOrNever is a time, or never.
func MomentOrNever(at *time.Time) string {
	if at == nil {
		return "never"
	}
	return Moment(*at)
}
