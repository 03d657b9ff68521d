package row

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tranchehq/tranche/internal/intake/jsonvalue"
)

// LoneCR says what is wrong with a "\r" where no line ends.
const LoneCR = "a carriage return without a line feed; save the input with LF or CRLF line ends"

// RefuseName says why a name cannot stand in a header; empty when it can.
func RefuseName(name string) string {
	switch {
	case name == "":
		return "the name is empty; name every column"
	case strings.IndexByte(name, 0) >= 0:
		return jsonvalue.BadByte([]byte(name), strings.IndexByte(name, 0))
	case !utf8.ValidString(name):
		return jsonvalue.BadByte([]byte(name), jsonvalue.InvalidAt([]byte(name)))
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
		open, _ = jsonvalue.AppendString(open, []byte(name))
		made[i] = append(open, ':')
	}
	return made
}
