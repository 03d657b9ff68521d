// Package row is what all readers of items share: what a row becomes, the rules for names of columns, what is said of a
// row, or of a whole input, that cannot be read, and JSON as payloads have it: valid UTF-8 without NUL, not even as an
// escape, and without spaces between tokens, so that PostgreSQL can store it. Whatever of the input an error repeats is
// quoted and bounded. It uses nothing of ours.
package row

import (
	"errors"
	"fmt"
	"slices"
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

// Item is one row.
type Item struct {
	// Key identifies the entity: 1 to intake.MaxKeyBytes bytes, valid UTF-8, no NUL.
	Key string
	// Payload is one compact JSON object. Next overwrites it in place: an Item that is used again loses its old payload,
	// so copy the bytes, or use a fresh Item, to keep them.
	Payload []byte
	// Line is the 1-based line of the input, after decompression, where the row starts.
	Line int
	// Invalid says in what the payload does not fit intake.Config.Schema; empty when it does, or when no one takes what
	// does not.
	Invalid string
}

// LoneCR says what is wrong with a "\r" where no line ends.
const LoneCR = "a carriage return without a line feed; save the input with LF or CRLF line ends"

// RefuseName says why a name cannot stand in a header; empty when it can.
func RefuseName(name string) string {
	switch {
	case name == "":
		return "the name is empty; name every column"
	case strings.IndexByte(name, 0) >= 0:
		return BadByte([]byte(name), strings.IndexByte(name, 0))
	case !utf8.ValidString(name):
		return BadByte([]byte(name), InvalidAt([]byte(name)))
	case strings.IndexByte(name, '\r') >= 0:
		return LoneCR
	default:
		return ""
	}
}

// KeyColumn finds the column of the keys by intake.Config.Key's rule.
func KeyColumn(names []string, key string, line int) (int, error) {
	if key != "" {
		if i := slices.Index(names, key); i >= 0 {
			return i, nil
		}
		return 0, &LineError{Line: line, Reason: fmt.Sprintf(
			"no column %s for the key; the columns are %s", Quote(key), List(names))}
	}
	for _, usual := range UsualKeys() {
		if i := slices.Index(names, usual); i >= 0 {
			return i, nil
		}
	}
	return 0, nil
}

// UsualKeys are the names that hold the key when none is given, best first.
func UsualKeys() []string { return []string{"key", "id"} }

// Prefixes writes what stands before each value of a payload. The names are known to be good.
func Prefixes(names []string) [][]byte {
	made := make([][]byte, len(names))
	for i, name := range names {
		open := []byte{','}
		if i == 0 {
			open = []byte{'{'}
		}
		open, _ = AppendString(open, []byte(name))
		made[i] = append(open, ':')
	}
	return made
}

// RecordError is returned for a row of a query or of a file without lines, or a message of a stream, that cannot be an
// item.
type RecordError struct {
	Unit   string // row, message
	Number int    // of the row, from 1; the message's sequence in its stream
	Field  string // the column or field; empty when all of it is meant
	Reason string // what is wrong, and what to do
}

func (e *RecordError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s %d: %s", e.Unit, e.Number, e.Reason)
	}
	return fmt.Sprintf("%s %d, field %s: %s", e.Unit, e.Number, Quote(e.Field), e.Reason)
}
