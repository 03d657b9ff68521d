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

// quick is the chunk time below which chunks are prefetched. Slower services would withhold them from others.
const quick = time.Second

// AheadBytes bounds the bytes prefetched beyond the slots, and those of one pull.
const AheadBytes = 8 << 20

// RequestID identifies a request. A recreated stream reuses sequences, but not timestamps.
type RequestID struct {
	Sequence uint64
	Stored   int64 // when the stream stored it, in Unix nanoseconds
}

// Delivery is the last delivery of a request.
type Delivery struct {
	msg  jetstream.Msg
	Made time.Time // creation time of the consumer that delivered it
	size int       // bytes, decompressed
}

// sizeOf returns the decompressed bytes of a message.
func sizeOf(msg jetstream.Msg) int {
	size := len(msg.Data())
	if msg.Headers().Get(wire.HeaderEncoding) == wire.EncodingZstd {
		if n, _, err := wire.Claimed(msg.Data(), wire.DefaultMaxBody); err == nil {
			size = max(size, n)
		}
	}
	return size
}

// Room tracks the requests that an endpoint holds and those in flight to it, and decides how many more to fetch.
type Room struct {
	slots  *Slots
	byItem bool // slots count items, not chunks
	Beyond int  // extra messages to fetch, as bytes allow: a call among them goes first
	freed  chan struct{}

	Mu    sync.Mutex
	held  map[RequestID]Delivery
	Bytes int
	late  struct{ messages, bytes int } // in flight from ended pulls
	items float64                       // per chunk, on average
	took  time.Duration                 // per chunk, on average
}

// NewRoom returns the room of an endpoint with slots, which count items if byItem is set.
func NewRoom(slots *Slots, byItem bool) *Room {
	r := &Room{slots: slots, byItem: byItem, freed: make(chan struct{}, 1), held: map[RequestID]Delivery{}}
	slots.OnResize(r.look)
	return r
}

func (r *Room) look() {
	select {
	case r.freed <- struct{}{}:
	default:
	}
}

// hold records a delivered request and returns false if it is already held. The new delivery is the one to
// acknowledge, as the earlier consumer may be gone.
func (r *Room) hold(id RequestID, d Delivery) bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	_, twice := r.held[id]
	r.Bytes += d.size - r.held[id].size
	r.held[id] = d
	return !twice
}

func (r *Room) delivery(id RequestID) Delivery {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.held[id]
}

// drop removes a handled request. items is 0 if no handler saw it.
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

// Want returns how many messages to fetch, and how many bytes may be prefetched. Messages that keep the slots busy
// are limited by concurrency only, not by bytes.
func (r *Room) Want() (n, bytes int) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	busy := r.slots.Len() // chunks that keep all slots busy
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
	if n < 0 { // bytes already prefetched, if messages are alike
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

// owe adjusts what is in flight from ended pulls.
func (r *Room) owe(messages, bytes int) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.late.messages += messages
	r.late.bytes += bytes
	r.look()
}

// wait returns how many messages, at least 1, and bytes to fetch once there is capacity.
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

// Deliveries returns the held deliveries.
func (r *Room) Deliveries() []Delivery {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return slices.Collect(maps.Values(r.held))
}

// Len returns the number of held requests.
func (r *Room) Len() int {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return len(r.held)
}

// Queued is the origin of a request held by a puller.
type Queued struct {
	Puller *Puller
	ID     RequestID
	Times  uint64
}

// Acknowledge removes the request from its stream.
func (q Queued) Acknowledge() { q.Puller.respond(q.ID, "acknowledge", jetstream.Msg.Ack) }

// Terminate removes the request and publishes the reason as an advisory.
func (q Queued) Terminate(reason error) {
	q.Puller.respond(q.ID, "terminate", func(msg jetstream.Msg) error { return msg.TermWithReason(reason.Error()) })
}

// Delivered returns the number of deliveries so far.
func (q Queued) Delivered() int { return int(min(q.Times, maxDelivered)) }

// Persisted returns true: a stream stores the request.
func (q Queued) Persisted() bool { return true }

// LetterID returns the ID of its dead letter if the request has none; it is the same each time.
func (q Queued) LetterID() string {
	return fmt.Sprintf("%s%s.%d.%d", wire.DeadID, q.Puller.stream, q.ID.Sequence, q.ID.Stored)
}

// Expires returns when the request's TTL ends, or zero.
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

// Nak requests redelivery after a delay.
func (q Queued) Nak(after time.Duration) bool {
	q.Puller.respond(q.ID, "hand back", func(msg jetstream.Msg) error { return msg.NakWithDelay(after) })
	return true
}

// maxDelivered bounds the count reported by a server.
const maxDelivered = 1 << 30

// parseTTL parses a TTL header like the server: seconds or a duration; 0 for anything else, including "never".
func parseTTL(value string) time.Duration {
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	if d, err := time.ParseDuration(value); err == nil && d > 0 {
		return d
	}
	return 0
}
