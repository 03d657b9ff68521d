package pg

import (
	"errors"
	"strings"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue"
)

// Plain makes a string from outside fit for a text column: valid UTF-8 without NUL.
func Plain(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// Sanitized does the same to headers, which end in a jsonb column.
func Sanitized(h map[string][]string) map[string][]string {
	clean := make(map[string][]string, len(h))
	for name, values := range h {
		for _, v := range values {
			clean[Plain(name)] = append(clean[Plain(name)], Plain(v))
		}
	}
	return clean
}

// MaxMatches bounds the ids that an AmbiguousError lists.
const MaxMatches = 10

// PrefixRange returns the least and the greatest id that begin with the digits of ref.
func PrefixRange(ref string) (low, high uuid.UUID, ok bool) {
	digits := strings.ReplaceAll(ref, "-", "")
	if len(digits) < workqueue.MinPrefix || len(digits) > 32 {
		return low, high, false
	}
	low, errLow := uuid.Parse(digits + strings.Repeat("0", 32-len(digits)))
	high, errHigh := uuid.Parse(digits + strings.Repeat("f", 32-len(digits)))
	return low, high, errors.Join(errLow, errHigh) == nil
}

// Piece returns the digits of ref, if it can be a piece of an id.
func Piece(ref string) (digits string, ok bool) {
	digits = strings.ToLower(strings.ReplaceAll(ref, "-", ""))
	_, _, ok = PrefixRange(digits)
	return digits, ok
}

// ValidText reports whether PostgreSQL can hold s: what it cannot hold, no run is called.
func ValidText(s string) bool {
	return !strings.Contains(s, "\x00") && strings.ToValidUTF8(s, "") == s
}

// Few reports whether rows of so many bytes are so few that the round trips of a COPY would be most of what they cost.
func Few(rows, bytes int) bool { return rows <= 256 && bytes <= 256<<10 }
