package endpoints

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// quick is the time a chunk may take for it to be worth while to fetch more ahead. A slower service would only keep
// from other instances what it cannot begin.
const quick = time.Second

// room knows the requests that an endpoint holds and how many more it should fetch.
type room struct {
	concurrency int
	byItem      bool // concurrency counts items, not chunks
	freed       chan struct{}

	mu    sync.Mutex
	held  map[uint64]jetstream.Msg // by stream sequence
	bytes int
	items float64       // of a chunk, on average
	took  time.Duration // by a chunk, on average
}

func newRoom(concurrency int, byItem bool) *room {
	return &room{
		concurrency: concurrency, byItem: byItem, freed: make(chan struct{}, 1), held: map[uint64]jetstream.Msg{},
	}
}

// hold notes a delivered message; false when it is held already.
func (r *room) hold(sequence uint64, msg jetstream.Msg) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, twice := r.held[sequence]; twice {
		return false
	}
	r.held[sequence] = msg
	r.bytes += len(msg.Data())
	return true
}

// drop forgets a message that has been dealt with. items is 0 when no handler saw it.
func (r *room) drop(sequence uint64, items int, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes -= len(r.held[sequence].Data())
	delete(r.held, sequence)
	if items > 0 {
		r.learn(items, took)
	}
	select {
	case r.freed <- struct{}{}:
	default:
	}
}

func (r *room) learn(items int, took time.Duration) {
	if r.items == 0 {
		r.items, r.took = float64(items), took
		return
	}
	r.items += (float64(items) - r.items) / 8
	r.took += (took - r.took) / 8
}

// want returns how many messages to fetch now, and how many bytes are held.
func (r *room) want() (n, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	busy := r.concurrency // the chunks that keep every slot busy
	if r.byItem {
		busy = 1
		if r.items > 0 {
			busy = int(math.Ceil(float64(r.concurrency) / r.items))
		}
	}
	if r.took < quick {
		busy *= 2
	}
	return busy - len(r.held), r.bytes
}

// wait returns how many messages to fetch, at least 1, as soon as there is room.
func (r *room) wait(ctx context.Context) (n, bytes int, err error) {
	for {
		if n, bytes = r.want(); n > 0 {
			return n, bytes, nil
		}
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-r.freed:
		}
	}
}

// messages returns what is held.
func (r *room) messages() []jetstream.Msg {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]jetstream.Msg, 0, len(r.held))
	for _, msg := range r.held {
		list = append(list, msg)
	}
	return list
}
