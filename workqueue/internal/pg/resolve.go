package pg

import (
	"errors"
	"strings"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue"
)

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

// ValidText reports whether PostgreSQL can hold s: what it cannot hold, no run is called.
func ValidText(s string) bool {
	return !strings.Contains(s, "\x00") && strings.ToValidUTF8(s, "") == s
}
