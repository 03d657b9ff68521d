package endpoints

import (
	"time"
)

// origin is where a request came from, and where word goes of what became of it.
type origin interface {
	// acknowledge lets the request go: it has been answered.
	acknowledge()
	// handBack has the request delivered again after a while. It reports false when whoever asked does not send it again:
	// then it must be answered.
	handBack(after time.Duration) bool
	// terminate lets the request go because it is of no use to anybody.
	terminate(reason error)
	// delivered returns how often the request has been delivered, this time included.
	delivered() int
	// expires is when nobody will want the answer any more; zero when that is not known.
	expires() time.Time
	// letterID is the Nats-Msg-Id of the letter of a request that has none of its own.
	letterID() string
	// persisted reports whether the request outlives its service.
	persisted() bool
}
