package wire

import (
	"math"
	"strconv"
	"time"
)

// maxTook is the longest that a chunk can be said to have taken; what is longer is no time of a chunk.
const maxTook = 365 * 24 * time.Hour

// FormatTook writes a time as HeaderTook has it: in milliseconds, with up to three decimals.
func FormatTook(d time.Duration) string {
	return strconv.FormatFloat(float64(max(d, 0).Microseconds())/1e3, 'f', -1, 64)
}

// parseTook reads HeaderTook. It is 0 when it is missing, or no time: what only says how long something took is no
// reason to refuse a reply.
func parseTook(value string) time.Duration {
	ms, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(ms) || ms < 0 || ms > float64(maxTook.Milliseconds()) {
		return 0
	}
	return time.Duration(math.Round(ms * float64(time.Millisecond)))
}
