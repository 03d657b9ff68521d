package core

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Presence says whether a request lies in the work stream.
type Presence int

// What is known of a request.
const (
	RequestUnknown Presence = iota // JetStream did not say
	RequestThere
	RequestGone
)

const (
	// lookups bounds how often one look asks JetStream for requests, one by one; a large one counts again for each
	// lookupBytes. The rest is left to the next.
	lookups     = 200
	lookupBytes = 64 << 10
)

// removeTimeout bounds the removal of requests.
const removeTimeout = 2 * time.Second

// RequestLook tells of requests whether they lie in the work stream. It is for one goroutine.
type RequestLook struct {
	js     jetstream.JetStream
	Stream jetstream.Stream
	first  uint64 // a purge would have left the stream's beginning behind a request
	looked int
	flows  map[string]Presence // whether an endpoint is one
}

// NewRequestLook returns a look for the requests of slices.
func NewRequestLook(ctx context.Context, k *Core) *RequestLook {
	stream, err := k.JS.Stream(ctx, wire.StreamWork)
	if err != nil {
		k.Log.Debug("look for requests", zap.Error(err))
		return &RequestLook{}
	}
	return &RequestLook{js: k.JS, Stream: stream, first: stream.CachedInfo().State.FirstSeq, flows: map[string]Presence{}}
}

// Request returns where a request is. Whoever may have it counts it as there when it is suspended between two stages of
// a flow. Past the bounds of a look, what no one was handed is taken to be there still, and gets more time.
func (l *RequestLook) Request(ctx context.Context, o settle.Overdue) Presence {
	if l.Stream == nil {
		return RequestUnknown
	}
	found := RequestGone
	if uint64(o.StreamSeq) >= l.first {
		if l.looked >= lookups && !o.Handed {
			return RequestThere
		}
		found = l.message(ctx, o)
	}
	if found != RequestGone || !o.Handed {
		return found
	}
	return l.suspended(ctx, o)
}

func (l *RequestLook) message(ctx context.Context, o settle.Overdue) Presence {
	if l.looked++; l.looked > lookups {
		return RequestUnknown
	}
	msg, err := l.Stream.GetMsg(ctx, uint64(o.StreamSeq))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return RequestGone
	case err != nil:
		return RequestUnknown
	case msg.Header.Get(wire.HeaderMsgID) != o.ID.String():
		return RequestGone
	}
	l.looked += len(msg.Data) / lookupBytes
	return RequestThere
}

// suspended looks for the state of a chunk of a flow, whose request is acknowledged when the state is stored.
func (l *RequestLook) suspended(ctx context.Context, o settle.Overdue) Presence {
	isFlow, known := l.flows[o.Endpoint]
	if !known {
		_, err := l.js.Consumer(ctx, wire.StreamStage, wire.ConsumerName(o.Endpoint))
		isFlow = whether(err, jetstream.ErrConsumerNotFound)
		l.flows[o.Endpoint] = isFlow
	}
	if isFlow != RequestThere {
		return isFlow
	}
	states, err := l.js.Stream(ctx, wire.StreamFlow)
	if err != nil {
		return RequestUnknown
	}
	for _, subject := range wire.FlowStates(o.Endpoint, uuid.UUID(o.ID)) {
		if l.looked++; l.looked > lookups {
			return RequestUnknown
		}
		_, err := states.GetLastMsgForSubject(ctx, subject)
		if found := whether(err, jetstream.ErrMsgNotFound); found != RequestGone {
			return found
		}
	}
	return RequestGone
}

// whether reads an answer of JetStream's to a question for something that may not be there.
func whether(err, missing error) Presence {
	switch {
	case err == nil:
		return RequestThere
	case errors.Is(err, missing):
		return RequestGone
	default:
		return RequestUnknown
	}
}

// RemoveRequests takes the requests of slices that have ended out of the work stream, so that no service works on them
// in vain. It is a courtesy, of bounded length: a request that stays is answered with a stale reply. The message id is
// compared first, since a sequence of an earlier stream may belong to another request now.
func RemoveRequests(ctx context.Context, k *Core, requests []workqueue.Sent) {
	if len(requests) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	stream, err := k.JS.Stream(ctx, wire.StreamWork)
	if err != nil {
		k.Log.Debug("remove requests", zap.Error(err))
		return
	}
	for _, r := range requests {
		if r.StreamSeq == 0 || ctx.Err() != nil {
			continue
		}
		msg, err := stream.GetMsg(ctx, uint64(r.StreamSeq))
		if err != nil || msg.Header.Get(wire.HeaderMsgID) != r.ID.String() {
			continue
		}
		if err := stream.DeleteMsg(ctx, uint64(r.StreamSeq)); err != nil {
			k.Log.Debug("remove a request", zap.Stringer("slice", r.ID), zap.Error(err))
		}
	}
}

// Message is a reply or a dead letter in a node's hands.
type Message struct {
	jetstream.Msg
	Made time.Time // when the consumer that delivered it was made
}

// SharedConsumer is a consumer that all nodes read from.
type SharedConsumer struct {
	node   *Core
	known  stream.Incarnation
	ensure func(context.Context, jetstream.JetStream) (jetstream.Consumer, error)
}

// NewShared is a consumer of a stream, which ensure creates or finds.
func NewShared(k *Core, stream, name string,
	ensure func(context.Context, jetstream.JetStream) (jetstream.Consumer, error),
) *SharedConsumer {
	s := &SharedConsumer{node: k, ensure: ensure}
	s.known.Ask = func(ctx context.Context) (time.Time, error) { // when was it made?
		consumer, err := k.JS.Consumer(ctx, stream, name)
		if err != nil {
			return time.Time{}, err
		}
		return consumer.CachedInfo().Created, nil
	}
	return s
}

// Bind creates or finds the consumer, and returns when it was made.
func (s *SharedConsumer) Bind(ctx context.Context) (made time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	asked := time.Now()
	if _, err := s.ensure(ctx, s.node.JS); err != nil {
		return time.Time{}, err
	}
	// Asked for, not taken from the answer above: after a restart the server gives another time there.
	if made, err = s.known.Ask(ctx); err != nil {
		return time.Time{}, err
	}
	s.known.Learn(asked, made)
	return made, nil
}

// Settle acknowledges a message, or gives it back, unless the consumer that delivered it is no more: then the sequence
// may belong to another one. What is not acknowledged is delivered again, which is harmless.
func (s *SharedConsumer) Settle(f Message, how func(jetstream.Msg) error) {
	if !s.known.Current().Equal(f.Made) {
		s.node.Log.Debug("left a message of an earlier stream alone", zap.String("subject", f.Subject()))
		return
	}
	if err := how(f.Msg); err != nil {
		s.node.Log.Debug("acknowledge", zap.String("subject", f.Subject()), zap.Error(err))
	}
}

// GiveBack lets a reply rest before any node may try again.
func GiveBack(msg jetstream.Msg) error { return msg.NakWithDelay(nakDelay) }

// nakDelay is how long a message that could not be recorded rests before any node may try again.
const nakDelay = time.Second
