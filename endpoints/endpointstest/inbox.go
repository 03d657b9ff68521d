package endpointstest

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// inbox takes in replies and puts them together.
type inbox struct {
	kit *Kit

	mu       sync.Mutex
	open     map[answer]*Reply
	expected map[answer]int // slots, once the final message is there
	pieces   map[answer]*wire.Assembly
	complete map[uuid.UUID][]*Reply
	arrived  chan struct{} // closed and replaced whenever one is complete
}

// answer is an instance's reply to a slice. One instance may answer a slice several times, but not at the same time.
type answer struct {
	slice   uuid.UUID
	service string
}

func newInbox(k *Kit) *inbox {
	k.t.Helper()
	b := &inbox{kit: k, open: map[answer]*Reply{}, expected: map[answer]int{}, complete: map[uuid.UUID][]*Reply{},
		pieces: map[answer]*wire.Assembly{}, arrived: make(chan struct{})}
	ctx, cancel := k.own()
	defer cancel()
	consumer, err := stream.EnsureRecorder(ctx, k.js)
	if err != nil {
		k.t.Fatalf("endpointstest: %v", err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(64))
	if err != nil {
		k.t.Fatalf("endpointstest: read replies: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			msg, err := messages.Next()
			if err != nil {
				return // it was stopped
			}
			b.take(msg)
		}
	}()
	k.t.Cleanup(func() {
		messages.Stop()
		<-done
	})
	return b
}

func (b *inbox) take(msg jetstream.Msg) {
	reply, err := b.read(msg)
	_ = msg.Ack() // lost with the server only, which ends with the test
	if err != nil {
		b.kit.t.Errorf("endpointstest: a reply on %s cannot be read: %v", msg.Subject(), err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	of := answer{reply.Slice, reply.Service}
	whole := b.open[of]
	if whole == nil {
		whole = &Reply{Service: reply.Service}
		b.open[of], b.expected[of] = whole, -1
	}
	whole.Messages++
	whole.Slots = append(whole.Slots, reply.Slots...)
	if reply.Answered >= 0 {
		whole.Failure, whole.Header, b.expected[of] = reply.Failure, msg.Headers(), reply.Answered
	}
	if b.expected[of] != len(whole.Slots) {
		return
	}
	delete(b.open, of)
	delete(b.expected, of)
	delete(b.pieces, of)
	slices.SortFunc(whole.Slots, func(x, y wire.Slot) int { return cmp.Compare(x.Ordinal, y.Ordinal) })
	b.complete[reply.Slice] = append(b.complete[reply.Slice], whole)
	close(b.arrived)
	b.arrived = make(chan struct{})
}

// read reads a message. The last piece of a result is one with its slot, the others are messages without any.
func (b *inbox) read(msg jetstream.Msg) (*wire.Reply, error) {
	if !wire.IsPiece(msg.Headers()) {
		return wire.ParseReply(msg.Subject(), msg.Headers(), msg.Data(), wire.Limits{})
	}
	p, err := wire.ParsePiece(msg.Subject(), msg.Headers(), msg.Data())
	if err != nil {
		return nil, err
	}
	of := answer{p.Slice, p.Service}
	if b.pieces[of] == nil { // whoever reads messages is alone with them
		b.pieces[of] = &wire.Assembly{}
	}
	reply := &wire.Reply{Meta: p.Meta, Endpoint: p.Endpoint, Service: p.Service, Answered: -1}
	slot, err := b.pieces[of].Add(p)
	if slot != nil {
		reply.Slots = []wire.Slot{*slot}
	}
	return reply, err
}

// next returns the first reply to a request that nobody has had yet.
func (b *inbox) next(ctx context.Context, patience time.Duration, r *Request) (*Reply, bool) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		reply, arrived := b.pop(r.Slice)
		if reply != nil {
			reply.Request = r
			return reply, true
		}
		select {
		case <-arrived:
		case <-timer.C:
			return nil, false
		case <-ctx.Done():
			return nil, false
		}
	}
}

func (b *inbox) pop(slice uuid.UUID) (*Reply, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	replies := b.complete[slice]
	if len(replies) == 0 {
		return nil, b.arrived
	}
	b.complete[slice] = replies[1:]
	return replies[0], nil
}

// forget drops the replies to a slice that nobody has asked for.
func (b *inbox) forget(slice uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.complete, slice)
}
