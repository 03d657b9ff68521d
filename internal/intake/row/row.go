// Package row has what all readers of items share: the item, the rules for column names, errors about a row or a
// whole input, and JSON as payloads hold it: valid UTF-8 without NUL, not even as an escape, and without spaces
// between tokens, so that PostgreSQL can store it. Errors quote and bound what they repeat of the input.
package row

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// ErrNoRows is wrapped by the InputError of an input without rows.
var ErrNoRows = errors.New("no rows")

// LineError is returned for a row that cannot be an item. The rows before it were valid.
type LineError struct {
	Line   int    // 1-based line of the fault in the input, after decompression
	Column string // the column (CSV) or top-level field (NDJSON); empty: the whole row
	Reason string // the fault and the remedy
	Source string // the name of the input; may be empty
}

func (e *LineError) Error() string {
	if e.Column == "" {
		return fmt.Sprintf("%sline %d: %s", before(e.Source), e.Line, e.Reason)
	}
	return fmt.Sprintf("%sline %d, field %s: %s", before(e.Source), e.Line, Quote(e.Column), e.Reason)
}

func before(source string) string {
	if source == "" {
		return ""
	}
	return source + ": "
}

// NameSource names the input in an error about it.
func NameSource(err error, source string) error {
	if line, ok := errors.AsType[*LineError](err); ok {
		line.Source = source
	}
	if whole, ok := errors.AsType[*InputError](err); ok {
		whole.Source = source
	}
	return err
}

// InputError is returned for an input that is unusable entirely or after some point: empty, of an unknown
// format, or damaged compressed data.
type InputError struct {
	Line   int    // the last line read; 0: none
	Reason string // the fault and the remedy
	Source string // the name of the input; may be empty
	Err    error  // the cause; may be nil
}

func (e *InputError) Error() string {
	if e.Line == 0 {
		return before(e.Source) + e.Reason
	}
	return fmt.Sprintf("%safter line %d: %s", before(e.Source), e.Line, e.Reason)
}

func (e *InputError) Unwrap() error { return e.Err }

// Limits on what an error message repeats of the input.
const (
	maxQuoted = 80 // bytes of one name
	maxListed = 20 // names in a list
)

// Quote makes a name safe to show: quoted, escaped and, if long, cut.
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

// Size formats a limit in bytes.
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
	// Payload is one compact JSON object. Next overwrites it in place: copy the bytes, or use a fresh Item, to keep
	// them.
	Payload []byte
	// Line is the 1-based line of the input, after decompression, where the row starts.
	Line int
	// Invalid says how the payload violates intake.Config.Schema; empty: it does not, or invalid items are not taken.
	Invalid string
}

// LoneCR is the error for a "\r" that ends no line.
const LoneCR = "a carriage return without a line feed; save the input with LF or CRLF line ends"

// RefuseName returns why a name cannot be in a header; empty if it can.
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

// KeyColumn finds the key's column by the rule of intake.Config.Key.
func KeyColumn(names []string, key string, rename map[string]string, line int) (int, error) {
	if key == "" {
		key = UsualKey(names, rename)
	}
	if i := slices.Index(names, key); i >= 0 {
		return i, nil
	}
	return 0, &LineError{Line: line, Reason: NoKey("column", key, names)}
}

// NoKey says that an input has no column or field of the key's name.
func NoKey(kind, key string, names []string) string {
	text := fmt.Sprintf("no %s %s for the key (--key); the %ss are %s", kind, Quote(key), kind, List(names))
	if near := Nearest(key, names); near != "" {
		text += "; did you mean " + Quote(near) + "?"
	}
	return text
}

// Nearest returns the name closest to a mistyped one, or "" if none is close.
func Nearest(name string, known []string) (nearest string) {
	least := min(2, max(len(name)/4, min(1, len(name)/3))) + 1 // one typo for three characters or more, two for eight
	for _, k := range known {
		if d := slips(name, k); d < least {
			nearest, least = k, d
		}
	}
	return nearest
}

// slips returns the edit distance of two texts (optimal string alignment).
func slips(a, b string) int {
	var before, last []int // the two previous rows
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			change := last[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}

// UsualKey is the default key among names, of which some will be renamed.
func UsualKey(names []string, rename map[string]string) string {
	missing := ""
	for _, key := range []string{"key", "id"} {
		for _, old := range slices.Sorted(maps.Keys(rename)) {
			if rename[old] == key && slices.Contains(names, old) {
				return old
			} else if rename[old] == key {
				missing = old
			}
		}
		if slices.Contains(names, key) && rename[key] == "" {
			return key
		}
	}
	return cmp.Or(missing, names[0])
}

// Prefixes returns the text before each value of a payload. The names are known to be valid.
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

// RecordError is returned for a row without a line (of a query or file), or a message of a stream, that cannot be
// an item.
type RecordError struct {
	Unit   string // row, message
	Number int    // of the row, from 1, or the message's sequence in its stream
	Field  string // the column or field; empty: all of it
	Reason string // the fault and the remedy
}

func (e *RecordError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s %d: %s", e.Unit, e.Number, e.Reason)
	}
	return fmt.Sprintf("%s %d, field %s: %s", e.Unit, e.Number, Quote(e.Field), e.Reason)
}
