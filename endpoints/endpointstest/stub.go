package endpointstest

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Asked is an item received by a stub.
type Asked struct {
	endpoints.ItemInfo
	Payload json.RawMessage
}

// Into decodes the payload.
func (a Asked) Into(value any) error { return json.Unmarshal(a.Payload, value) }

// Answer returns a slot with a result: any value that can be written as JSON, or an endpoints.Binary.
func (a Asked) Answer(result any) wire.Slot {
	if binary, ok := result.(wire.Binary); ok {
		return wire.Slot{Ordinal: a.Ordinal, Data: binary.Data, ContentType: binary.ContentType}
	}
	encoded, err := json.Marshal(result)
	if err != nil {
		return a.Fail(wire.CodeBadResult, err.Error())
	}
	return wire.Slot{Ordinal: a.Ordinal, Data: encoded}
}

// Fail returns a slot with a permanent error.
func (a Asked) Fail(code, message string) wire.Slot {
	return wire.Slot{Ordinal: a.Ordinal, Err: &wire.SlotError{Code: code, Message: message}}
}

// Retry returns a slot with a retryable error.
func (a Asked) Retry(code, message string) wire.Slot {
	return wire.Slot{Ordinal: a.Ordinal, Err: &wire.SlotError{Code: code, Message: message, Retry: true}}
}

// Stub is an endpoint answered by the test.
type Stub struct {
	*Instance

	mu       sync.Mutex
	requests [][]Asked
}

// Stub serves an endpoint with the results of answer: slots in any order, and an error for items without a slot.
// Items with neither are left out.
func (k *Kit) Stub(endpoint string, answer func([]Asked) ([]wire.Slot, error)) *Stub {
	k.t.Helper()
	s := &Stub{}
	s.Instance = k.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, endpoint,
			func(_ context.Context, chunk *endpoints.Chunk[json.RawMessage, any]) error {
				return s.answer(chunk, answer)
			})
	}, func(c *endpoints.Config) { c.Name = "stub-of-" + endpoint })
	return s
}

// Requests returns the items of each request received, in order.
func (s *Stub) Requests() [][]Asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func (s *Stub) answer(
	chunk *endpoints.Chunk[json.RawMessage, any], answer func([]Asked) ([]wire.Slot, error),
) error {
	byOrdinal := map[int]*endpoints.Item[json.RawMessage, any]{}
	asked := make([]Asked, 0, len(chunk.Items()))
	for _, item := range chunk.Items() {
		byOrdinal[item.Ordinal] = item
		asked = append(asked, Asked{item.Info(), item.In})
	}
	s.mu.Lock()
	s.requests = append(s.requests, asked)
	s.mu.Unlock()
	slots, err := answer(slices.Clone(asked))
	for _, slot := range slots {
		item := byOrdinal[slot.Ordinal]
		switch {
		case item == nil:
			return endpoints.Fail("stub", "the stub answers ordinal %d, which was not requested", slot.Ordinal)
		case slot.Err != nil && slot.Err.Retry:
			item.Retry(slot.Err.Code, "%s", slot.Err.Message)
		case slot.Err != nil:
			item.Fail(slot.Err.Code, "%s", slot.Err.Message)
		case slot.ContentType != "":
			item.Reply(wire.Binary{ContentType: slot.ContentType, Data: slot.Data})
		default:
			item.Reply(json.RawMessage(slot.Data))
		}
	}
	return err
}

type inbox struct {
	kit *Kit

	mu       sync.Mutex
	open     map[answer]*Reply
	expected map[answer]int // number of slots, once the final message has arrived
	pieces   map[answer]*wire.Assembly
	complete map[uuid.UUID][]*Reply
	arrived  chan struct{} // closed and replaced when a reply is complete
}

// answer identifies an instance's reply to a slice. Repeated replies of one instance do not overlap.
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
				return // stopped
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
	_ = msg.Ack() // lost only with the server, at the end of the test
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

// read parses a message. The last piece of a result yields its slot, other pieces none.
func (b *inbox) read(msg jetstream.Msg) (*wire.Reply, error) {
	if !wire.IsPiece(msg.Headers()) {
		return wire.ParseReply(msg.Subject(), msg.Headers(), msg.Data(), wire.Limits{})
	}
	p, err := wire.ParsePiece(msg.Subject(), msg.Headers(), msg.Data())
	if err != nil {
		return nil, err
	}
	of := answer{p.Slice, p.Service}
	if b.pieces[of] == nil { // only one goroutine reads messages
		b.pieces[of] = &wire.Assembly{}
	}
	reply := &wire.Reply{Meta: p.Meta, Endpoint: p.Endpoint, Service: p.Service, Answered: -1}
	slot, err := b.pieces[of].Add(p)
	if slot != nil {
		reply.Slots = []wire.Slot{*slot}
	}
	return reply, err
}

// next returns the first reply to a request not yet returned.
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

func (b *inbox) forget(slice uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.complete, slice)
}

// DeadLetter removes and returns the next dead letter of any endpoint, or fails the test on timeout. Services write
// dead letters only for requests of [wire.ModeSingle].
func (k *Kit) DeadLetter() wire.DeadLetter {
	k.t.Helper()
	ctx, cancel := k.own()
	defer cancel()
	reader, err := stream.EnsureDeadLetterReader(ctx, k.js)
	if err != nil {
		k.t.Fatalf("endpointstest: %v", err)
	}
	waiting, stop := context.WithTimeout(k.ctx, k.patience)
	defer stop()
	msg, err := reader.Next(jetstream.FetchContext(waiting))
	if err != nil {
		k.t.Fatalf("endpointstest: in %s there was no dead letter: %v", k.patience, err)
	}
	letter, err := wire.ParseDeadLetter(msg.Subject(), msg.Headers(), msg.Data())
	if err != nil {
		k.t.Fatalf("endpointstest: a dead letter on %s cannot be read: %v", msg.Subject(), err)
	}
	acking, acked := k.own()
	defer acked()
	if err := msg.DoubleAck(acking); err != nil {
		k.t.Fatalf("endpointstest: take a dead letter off its stream: %v", err)
	}
	return letter
}
