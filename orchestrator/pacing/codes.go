package pacing

import "github.com/tranchehq/tranche/workqueue"

// Kind is what the error code of a request, or of an item in it, says about the pace.
type Kind int

// The kinds of error codes.
const (
	// Other says nothing about the pace.
	Other Kind = iota
	// Throttled means that the service refuses work because it is too much at the moment.
	Throttled
	// TimedOut means that no answer came in time.
	TimedOut
	// TooBig means that the request was more than the service can deal with at once.
	TooBig
)

// KindOf returns what a code says.
func KindOf(code string) Kind {
	if workqueue.Throttled(code) {
		return Throttled
	}
	switch code {
	case "deadline", "timeout", "504":
		return TimedOut
	case "too_big", "too_large", "payload_too_large", "chunk_too_large", "413", "held_too_large", "state_too_large",
		"query_too_large", "too_many_deliveries", "out_of_memory":
		return TooBig
	default:
		return Other
	}
}
