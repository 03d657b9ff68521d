package endpoints

import (
	"fmt"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
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
