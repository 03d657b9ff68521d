package consume

import (
	"fmt"
	"strconv"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Queued is the origin of a request that a puller holds.
type Queued struct {
	Puller *Puller
	ID     RequestID
	Times  uint64
}

// Acknowledge takes the request out of its stream.
func (q Queued) Acknowledge() { q.Puller.tell(q.ID, "acknowledge", acknowledge) }

// Terminate takes it out, for a reason that others are told.
func (q Queued) Terminate(reason error) { q.Puller.tell(q.ID, "terminate", terminate(reason)) }

// Delivered is how often it was delivered, this time included.
func (q Queued) Delivered() int { return int(min(q.Times, maxDelivered)) }

// Persisted says that a stream has it.
func (q Queued) Persisted() bool { return true }

// LetterID is the id of a dead letter about it, the same each time.
func (q Queued) LetterID() string {
	return fmt.Sprintf("%s%s.%d.%d", wire.DeadID, q.Puller.stream, q.ID.Sequence, q.ID.Stored)
}

// Expires is when nobody waits for it any more; zero: never.
func (q Queued) Expires() time.Time {
	msg := q.Puller.Room.delivery(q.ID).msg
	if msg == nil {
		return time.Time{}
	}
	ttl := parseTTL(msg.Headers().Get(wire.HeaderTTL))
	if ttl == 0 {
		return time.Time{}
	}
	return time.Unix(0, q.ID.Stored).Add(ttl) // by the server's clock
}

// HandBack has it delivered again after a while.
func (q Queued) HandBack(after time.Duration) bool {
	q.Puller.tell(q.ID, "hand back", handBack(after))
	return true
}

// maxDelivered bounds a count that comes from a server.
const maxDelivered = 1 << 30

// parseTTL reads the time to live of a message as the server does: a number of seconds, or a duration. It is 0 for
// anything else, "never" among it.
func parseTTL(value string) time.Duration {
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	if d, err := time.ParseDuration(value); err == nil && d > 0 {
		return d
	}
	return 0
}
