package endpoints

import (
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// answerBox collects the answers to a call. The first answer to an item counts, and the first final message of a
// request. It is safe for concurrent use.
type answerBox struct {
	endpoint string
	take     func(int, wire.Slot) // called once for each item
	done     chan struct{}        // closed once all items are answered

	mu       sync.Mutex
	stop     func(error) // ends the call
	closed   bool        // the caller has gone
	answered []bool
	left     int // items not answered
	parts    map[uuid.UUID]*callPart
}

type callPart struct {
	first, end int              // ordinals [first, end), without those at the end that did not fit
	left       int              // unanswered ordinals
	slots      map[int]struct{} // ordinals of received slots, also of unrequested items
	final      int              // number of slots in the whole reply; -1 until known
	whole      bool             // the final message held all slots
	failure    *wire.SlotError
	completed  func()
}

func newAnswerBox(endpoint string, items int, take func(int, wire.Slot)) *answerBox {
	b := &answerBox{endpoint: endpoint, take: take, done: make(chan struct{}), stop: func(error) {},
		answered: make([]bool, items), left: items, parts: map[uuid.UUID]*callPart{}}
	if items == 0 {
		close(b.done)
	}
	return b
}

func (b *answerBox) begin(stop func(error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stop = stop
}

// expect registers a request. completed is called when its last answer has arrived.
func (b *answerBox) expect(slice uuid.UUID, first, end int, completed func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &callPart{first: first, end: end, final: -1, slots: map[int]struct{}{}, completed: completed}
	for n := first; n < end; n++ {
		if !b.answered[n] {
			p.left++
		}
	}
	b.parts[slice] = p
}

// receive handles a message from the server or a service.
func (b *answerBox) receive(msg *nats.Msg) {
	if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
		b.end(&NoListenersError{Endpoint: b.endpoint})
		return
	}
	reply, err := wire.ReceiveReply(b.endpoint, msg.Header, msg.Data, wire.Limits{})
	if err != nil {
		b.end(&BadReplyError{Endpoint: b.endpoint, Service: wire.OneLine(wire.Cut(msg.Header.Get(wire.HeaderService),
			wire.MaxServiceName)),
			Err: err})
		return
	}
	b.record(reply)
}

func (b *answerBox) record(reply *wire.Reply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.parts[reply.Slice]
	if b.closed || p == nil { // late, or already complete
		return
	}
	for _, slot := range reply.Slots {
		p.slots[slot.Ordinal] = struct{}{}
		if slot.Ordinal >= p.first && slot.Ordinal < p.end && b.answer(slot.Ordinal, slot) {
			p.left--
		}
	}
	if reply.Answered >= 0 && p.final < 0 {
		p.final, p.failure, p.whole = reply.Answered, reply.Failure, len(reply.Slots) >= reply.Answered
	}
	if p.left == 0 || p.whole || p.final >= 0 && len(p.slots) >= p.final {
		b.complete(reply.Slice, p)
	}
}

func (b *answerBox) complete(slice uuid.UUID, p *callPart) {
	delete(b.parts, slice)
	failure := p.failure
	if failure == nil {
		failure = wire.NewSlotError(wire.CodeUnanswered, fmt.Sprintf("endpoint %s left the item out", b.endpoint), true)
	}
	for n := p.first; n < p.end && p.left > 0; n++ {
		if own := *failure; b.answer(n, wire.Slot{Ordinal: n, Err: &own}) {
			p.left--
		}
	}
	p.completed()
}

// answer records the first answer to an item. mu must be held.
func (b *answerBox) answer(n int, slot wire.Slot) bool {
	if b.answered[n] {
		return false
	}
	b.answered[n] = true
	b.take(n, slot)
	if b.left--; b.left == 0 {
		close(b.done)
	}
	return true
}

// fail answers an item on the caller's side, before it is sent.
func (b *answerBox) fail(n int, e *wire.SlotError) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer(n, wire.Slot{Ordinal: n, Err: e})
}

func (b *answerBox) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stop(err)
}

// close rejects further answers and returns how many arrived.
func (b *answerBox) close() (answered int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return len(b.answered) - b.left
}

// giveUp answers the remaining items with why, if it is not nil. It is called after the call.
func (b *answerBox) giveUp(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if why == nil {
		return
	}
	for n, answered := range b.answered {
		if !answered {
			b.take(n, wire.Slot{Ordinal: n, Err: wire.NewSlotError(wire.CodeUnanswered, why.Error(), true)})
		}
	}
}
