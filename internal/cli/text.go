package cli

import (
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/alecthomas/kong"
)

// EscapeControl makes a text from outside safe to print on one line of a terminal: what could move the cursor, change
// colours or turn the direction of writing is shown as an escape.
func EscapeControl(s string) string { return escape(s, "") }

// InertText is inert for a text that may have lines and tabs.
func InertText(s string) string { return escape(s, "\n\t") }

// escape leaves printable characters and those in kept as they are.
func escape(s, kept string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r), strings.ContainsRune(kept, r):
			b.WriteRune(r)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default: // format characters, bidi overrides among them, and odd spaces
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

// Unescaped takes back what EscapeControl did to a text; false: there is no escape in it. What stands for itself and
// what is an escape cannot be told apart: try the text itself first.
func Unescaped(s string) (text string, escaped bool) {
	var b strings.Builder
	for i := 0; i < len(s); {
		digits := 0
		if rest := s[i:]; strings.HasPrefix(rest, `\x`) {
			digits = 2
		} else if strings.HasPrefix(rest, `\u`) {
			digits = 4
		}
		if end := i + 2 + digits; digits > 0 && end <= len(s) {
			if n, err := strconv.ParseUint(s[i+2:end], 16, 32); err == nil {
				b.WriteRune(rune(n))
				i, escaped = end, true
				continue
			}
		}
		b.WriteByte(s[i])
		i++
	}
	return b.String(), escaped
}

// inertWriter passes on lines and tabs, and everything else that is inert. A character may be cut between two writes.
type inertWriter struct {
	to   io.Writer
	rest []byte
}

func (w *inertWriter) Write(p []byte) (int, error) {
	text := slices.Concat(w.rest, p)
	whole := len(text)
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if start := len(text) - back; utf8.RuneStart(text[start]) {
			if !utf8.FullRune(text[start:]) {
				whole = start
			}
			break
		}
	}
	w.rest = text[whole:]
	if _, err := io.WriteString(w.to, escape(string(text[:whole]), "\n\t")); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CheckValues refuses an argument or flag that was given as an empty text: more likely than not it was to come from a
// variable that is not set, and a run without a name, or a key that protects from starting twice, must not get lost
// so. And it refuses numbers and times beyond the bounds of their tags, like within:"1,500" and within:"0s,".
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
		if given != nil && isEmptyText(given.Target) {
			return &usageError{fmt.Sprintf("%s is empty; say what is meant; see: %s --help", given.ShortSummary(),
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
	low, high, bounded := strings.Cut(v.Tag.Get("within"), ",")
	given := reflect.Indirect(v.Target)
	if !bounded || !v.Set || !given.IsValid() {
		return nil
	}
	text, most, want := fmt.Sprint(given.Interface()), math.Inf(1), low+" or more"
	if high != "" {
		most, want = number(high), low+" to "+high
	}
	if n := number(text); !(n >= number(low) && n <= most) { // so that NaN is refused
		return &usageError{fmt.Sprintf("%s must be %s, got %s", v.ShortSummary(), want, text)}
	}
	return nil
}

// number is a number, or the seconds of a duration.
func number(text string) float64 {
	if d, err := time.ParseDuration(text); err == nil {
		return d.Seconds()
	}
	n, _ := strconv.ParseFloat(text, 64) // of a tag, or what kong has read as one
	return n
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

// ShortRun is the same of a run that there may be.
func ShortRun(id *string) string {
	if id == nil {
		return "-"
	}
	return EscapeControl(ShortID(*id))
}

// OrDash is a text, or a dash for none.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return EscapeControl(s)
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

// MomentOrNever is a time, or never.
func MomentOrNever(at *time.Time) string {
	if at == nil {
		return "never"
	}
	return Moment(*at)
}

// PastTimes reads points in time on the command line by [PastTime].
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

// PastTime reads a duration back from now, a date, or a time with or without its zone.
func PastTime(text string) (at time.Time, err error) {
	if back, err := time.ParseDuration(text); err == nil && back >= 0 {
		return time.Now().Add(-back), nil
	}
	for _, layout := range []string{time.DateOnly, time.DateTime, "2006-01-02T15:04:05", "2006-01-02 15:04", time.RFC3339} {
		if at, err = time.ParseInLocation(layout, text, time.Local); err == nil {
			break
		}
	}
	switch {
	case err != nil:
		return at, fmt.Errorf("invalid time %q; use 90m, 24h, 2026-01-31 or 2026-01-31T15:04:05Z", text)
	case at.IsZero(): // would be taken for none
		return at, fmt.Errorf("%q is too long ago for anything to be recorded; give a later time, or leave the flag out for "+
			"no bound", text)
	}
	return at, nil
}
