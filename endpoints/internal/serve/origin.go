package serve

import (
	"time"
)

// origin is where a request came from, and where word goes of what became of it.
type origin interface {
	// Acknowledge lets the request go: it has been answered.
	Acknowledge()
	// HandBack has the request delivered again after a while. It reports false when whoever asked does not send it again:
	// then it must be answered.
	HandBack(after time.Duration) bool
	// Terminate lets the request go because it is of no use to anybody.
	Terminate(reason error)
	// Delivered returns how often the request has been delivered, this time included.
	Delivered() int
	// Expires is when nobody will want the answer any more; zero when that is not known.
	Expires() time.Time
	// LetterID is the Nats-Msg-Id of the letter of a request that has none of its own.
	LetterID() string
	// Persisted reports whether the request outlives its service.
	Persisted() bool
}
