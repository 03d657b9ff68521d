package serve

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// quick is the time a chunk may take for it to be worth while to fetch more ahead. A slower service would only keep
// from other instances what it cannot begin.
const quick = time.Second

// AheadBytes bounds what is fetched ahead of the slots, and what one pull brings.
const AheadBytes = 8 << 20

// RequestID tells requests apart. A stream that was made again uses its sequences again, but not at the same time.
type RequestID struct {
	Sequence uint64
	Stored   int64 // when the stream took it, in Unix nanoseconds
}

// Delivery is a request as it was last delivered.
type Delivery struct {
	msg  jetstream.Msg
	Made time.Time // when the consumer was made that delivered it
	size int       // bytes that it takes, decompressed
}

// sizeOf returns how many bytes a message takes once it is read.
func sizeOf(msg jetstream.Msg) int {
	size := len(msg.Data())
	if msg.Headers().Get(wire.HeaderEncoding) == wire.EncodingZstd {
		if n, _, err := wire.Claimed(msg.Data(), wire.DefaultMaxBody); err == nil {
			size = max(size, n)
		}
	}
	return size
}

// Room knows the requests that an endpoint holds, and those on their way, and how many more it should fetch.
type Room struct {
	slots  *Slots
	byItem bool // a slot is for an item, not for a chunk
	Beyond int  // so many more are fetched in any case, as far as bytes allow: one of them may come first
	freed  chan struct{}

	Mu    sync.Mutex
	held  map[RequestID]Delivery
	Bytes int
	late  struct{ messages, bytes int } // on their way, of pulls that are over
	items float64                       // of a chunk, on average
	took  time.Duration                 // by a chunk, on average
}

// NewRoom is for an endpoint with slots; byItem says that one is for an item.
func NewRoom(slots *Slots, byItem bool) *Room {
	r := &Room{slots: slots, byItem: byItem, freed: make(chan struct{}, 1), held: map[RequestID]Delivery{}}
	slots.OnResize(r.look)
	return r
}

// look has whoever waits for room look again.
func (r *Room) look() {
	select {
	case r.freed <- struct{}{}:
	default:
	}
}

// hold notes a delivered request; false when it is held already. Then this delivery is the one to acknowledge: the
// consumer that made the earlier one may be gone.
func (r *Room) hold(id RequestID, d Delivery) bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	_, twice := r.held[id]
	r.Bytes += d.size - r.held[id].size
	r.held[id] = d
	return !twice
}

// delivery returns the last delivery of a request that is held.
func (r *Room) delivery(id RequestID) Delivery {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.held[id]
}

// drop forgets a request that has been handled. items is 0 when no handler saw it.
func (r *Room) drop(id RequestID, items int, took time.Duration) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Bytes -= r.held[id].size
	delete(r.held, id)
	if items > 0 {
		r.learn(items, took)
	}
	r.look()
}

func (r *Room) learn(items int, took time.Duration) {
	if r.items == 0 {
		r.items, r.took = float64(items), took
		return
	}
	r.items += (float64(items) - r.items) / 8
	r.took += (took - r.took) / 8
}

// Want returns how many messages to fetch now, and how many bytes may be fetched ahead. What keeps the slots busy is
// not bounded by bytes, but by the concurrency that the service has asked for.
func (r *Room) Want() (n, bytes int) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	busy := r.slots.Len() // the chunks that keep every slot busy
	if r.byItem {
		busy = 1
		if r.items > 0 {
			busy = int(math.Ceil(float64(r.slots.Len()) / r.items))
		}
	}
	here := len(r.held) + r.late.messages
	n, bytes = busy-here, AheadBytes
	if r.took >= quick && r.Beyond == 0 {
		return n, bytes
	}
	if n < 0 { // what is ahead already, if all are alike
		bytes -= (r.Bytes + r.late.bytes) / here * -n
	}
	if bytes > 0 && r.took < quick {
		n += busy
	}
	if bytes > 0 {
		n += r.Beyond
	}
	return n, bytes
}

// owe notes by how much has grown, or shrunk, what is still to come of pulls that are over.
func (r *Room) owe(messages, bytes int) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.late.messages += messages
	r.late.bytes += bytes
	r.look()
}

// wait returns how many messages to fetch, at least 1, as soon as there is room, and how many bytes.
func (r *Room) wait(ctx context.Context) (n, bytes int, err error) {
	for {
		if n, bytes = r.Want(); n > 0 {
			return n, bytes, nil
		}
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-r.freed:
		}
	}
}

// Deliveries returns what is held.
func (r *Room) Deliveries() []Delivery {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return slices.Collect(maps.Values(r.held))
}

// Len returns how many requests are held.
func (r *Room) Len() int {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return len(r.held)
}

// Queued is the origin of a request that a puller holds.
type Queued struct {
	Puller *Puller
	ID     RequestID
	Times  uint64
}

// Acknowledge takes the request out of its stream.
func (q Queued) Acknowledge() { q.Puller.respond(q.ID, "acknowledge", jetstream.Msg.Ack) }

// Terminate takes it out, for a reason that others are told.
func (q Queued) Terminate(reason error) {
	q.Puller.respond(q.ID, "terminate", func(msg jetstream.Msg) error { return msg.TermWithReason(reason.Error()) })
}

// Delivered is how often it was delivered, this time included.
func (q Queued) Delivered() int { return int(min(q.Times, maxDelivered)) }

// Persisted says that a stream has it.
func (q Queued) Persisted() bool { return true }

// LetterID is the id of a dead letter about it, the same each time.
func (q Queued) LetterID() string {
	return fmt.Sprintf("%s%s.%d.%d", wire.DeadID, q.Puller.stream, q.ID.Sequence, q.ID.Stored)
}

// Expires is when no one waits for it any more; zero: never.
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

// Nak has it delivered again after a while.
func (q Queued) Nak(after time.Duration) bool {
	q.Puller.respond(q.ID, "hand back", func(msg jetstream.Msg) error { return msg.NakWithDelay(after) })
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
