package endpoints

import (
	"fmt"
	"strconv"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// queued is the origin of a request that a puller holds.
type queued struct {
	puller *puller
	id     requestID
	times  uint64
}

func (q queued) acknowledge()           { q.puller.tell(q.id, "acknowledge", acknowledge) }
func (q queued) terminate(reason error) { q.puller.tell(q.id, "terminate", terminate(reason)) }
func (q queued) delivered() int         { return int(min(q.times, maxDelivered)) }
func (q queued) persisted() bool        { return true }

func (q queued) letterID() string {
	return fmt.Sprintf("%s%s.%d.%d", wire.DeadID, q.puller.stream, q.id.sequence, q.id.stored)
}

func (q queued) expires() time.Time {
	msg := q.puller.room.delivery(q.id).msg
	if msg == nil {
		return time.Time{}
	}
	ttl := parseTTL(msg.Headers().Get(wire.HeaderTTL))
	if ttl == 0 {
		return time.Time{}
	}
	return time.Unix(0, q.id.stored).Add(ttl) // by the server's clock
}

func (q queued) handBack(after time.Duration) bool {
	q.puller.tell(q.id, "hand back", handBack(after))
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
