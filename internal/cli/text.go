package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
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
