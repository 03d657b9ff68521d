package row

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrNoRows is wrapped by the InputError of an input that holds no rows.
var ErrNoRows = errors.New("no rows")

// LineError is returned for a row that cannot be an item. The rows before it were good.
type LineError struct {
	Line   int    // 1-based line of the input, after decompression, where the trouble is
	Column string // the column (CSV) or top-level field (NDJSON); empty when the whole row is meant
	Reason string // what is wrong, and what to do
}

func (e *LineError) Error() string {
	if e.Column == "" {
		return fmt.Sprintf("line %d: %s", e.Line, e.Reason)
	}
	return fmt.Sprintf("line %d, field %s: %s", e.Line, Quote(e.Column), e.Reason)
}

// InputError is returned for an input that is unusable as a whole, or from some place on: empty, of an unknown kind, or
// broken compressed data.
type InputError struct {
	Line   int    // the last line that was read; 0 when there was none
	Reason string // what is wrong, and what to do
	Err    error  // the cause; may be nil
}

func (e *InputError) Error() string {
	if e.Line == 0 {
		return e.Reason
	}
	return fmt.Sprintf("after line %d: %s", e.Line, e.Reason)
}

func (e *InputError) Unwrap() error { return e.Err }

// Bounds of what an error message repeats of the input.
const (
	maxQuoted = 80 // bytes of one name
	maxListed = 20 // names in a list
)

// Quote makes a name safe to show: quoted, escaped, and cut when it is long.
func Quote(name string) string {
	if len(name) <= maxQuoted {
		return fmt.Sprintf("%q", name)
	}
	cut := maxQuoted
	for cut > 0 && !utf8.RuneStart(name[cut]) {
		cut--
	}
	return fmt.Sprintf("%q…", name[:cut])
}

// List quotes names for a message.
func List(names []string) string {
	var b strings.Builder
	for i, name := range names {
		if i == maxListed {
			fmt.Fprintf(&b, " and %d more", len(names)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(Quote(name))
	}
	return b.String()
}

// Size writes a limit in bytes the way people say it.
func Size(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	default:
		return fmt.Sprintf("%d bytes", n)
	}
}
