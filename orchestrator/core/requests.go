package core

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Presence is whether a request is in the work stream.
type Presence int

// The presences.
const (
	RequestUnknown Presence = iota // JetStream did not answer
	RequestThere
	RequestGone
)

const (
	// lookups limits the JetStream queries of one RequestLook; a large request counts again for each lookupBytes.
	lookups     = 200
	lookupBytes = 64 << 10
)

// removeTimeout limits the removal of requests, which is best effort.
const removeTimeout = 2 * time.Second

// RequestLook checks whether requests are in the work stream. It is for one goroutine.
type RequestLook struct {
	js     jetstream.JetStream
	Stream jetstream.Stream
	first  uint64 // first sequence of the stream, which is past the requests that a purge removed
	looked int
	flows  map[string]Presence // whether an endpoint is a flow
}

// NewRequestLook returns a look over the work stream.
func NewRequestLook(ctx context.Context, k *Core) *RequestLook {
	stream, err := k.JS.Stream(ctx, wire.StreamWork)
	if err != nil {
		k.Log.Debug("find requests", zap.Error(err))
		return &RequestLook{}
	}
	return &RequestLook{js: k.JS, Stream: stream, first: stream.CachedInfo().State.FirstSeq, flows: map[string]Presence{}}
}

// Request returns a request's presence. A delivered one counts as there while suspended in a flow. Beyond the limit
// of lookups, undelivered ones are assumed to be there.
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

// suspended finds the state of a flow's chunk: the request is acknowledged once the state is stored.
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

// RemoveRequests removes requests from the work stream and returns those that are no longer there. For closed slices it
// saves services useless work and is best effort: one that stays gets a stale reply. It compares message ids, since a
// sequence may be reused in a new stream.
func RemoveRequests(ctx context.Context, k *Core, requests []workqueue.Sent) (absent []workqueue.Sent) {
	if len(requests) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	stream, err := k.JS.Stream(ctx, wire.StreamWork)
	if err != nil {
		k.Log.Debug("remove requests", zap.Error(err))
		return nil
	}
	for _, r := range requests {
		if r.StreamSeq == 0 || ctx.Err() != nil {
			continue
		}
		msg, err := stream.GetMsg(ctx, uint64(r.StreamSeq))
		if err == nil && msg.Header.Get(wire.HeaderMsgID) == r.ID.String() {
			err = stream.DeleteMsg(ctx, uint64(r.StreamSeq))
		}
		if err == nil || errors.Is(err, jetstream.ErrMsgNotFound) {
			absent = append(absent, r)
		} else {
			k.Log.Debug("remove a request", zap.Stringer("slice", r.ID), zap.Error(err))
		}
	}
	return absent
}

// Message is a reply or a dead letter being processed.
type Message struct {
	jetstream.Msg
	Made time.Time // creation time of the consumer that delivered it
}

// SharedConsumer is a consumer that all nodes read from.
type SharedConsumer struct {
	node   *Core
	known  stream.Incarnation
	ensure func(context.Context, jetstream.JetStream) (jetstream.Consumer, error)
	limit  backoff.Timeout
}

// NewShared returns a shared consumer, which ensure creates or finds.
func NewShared(k *Core, stream, name string,
	ensure func(context.Context, jetstream.JetStream) (jetstream.Consumer, error),
) *SharedConsumer {
	s := &SharedConsumer{node: k, ensure: ensure, limit: Querying()}
	s.known.Ask = func(ctx context.Context) (time.Time, error) { // its creation time
		consumer, err := k.JS.Consumer(ctx, stream, name)
		if err != nil {
			return time.Time{}, err
		}
		return consumer.CachedInfo().Created, nil
	}
	return s
}

// Bind creates or finds the consumer, and returns its creation time.
func (s *SharedConsumer) Bind(ctx context.Context) (made time.Time, err error) {
	ctx, end := s.limit.Context(ctx)
	defer end()
	asked := time.Now()
	if _, err := s.ensure(ctx, s.node.JS); err != nil {
		return time.Time{}, err
	}
	// Queried again: after a restart the server gives another time in ensure's response.
	if made, err = s.known.Ask(ctx); err != nil {
		return time.Time{}, err
	}
	s.known.Learn(asked, made)
	return made, nil
}

// Settle acknowledges or releases a message, unless its consumer was replaced: the sequence may then be another
// message's. An unacknowledged message is redelivered, which is harmless.
func (s *SharedConsumer) Settle(f Message, how func(jetstream.Msg) error) {
	if !s.known.Current().Equal(f.Made) {
		s.node.Log.Debug("left a message of an earlier stream alone", zap.String("subject", f.Subject()))
		return
	}
	if err := how(f.Msg); err != nil {
		s.node.Log.Debug("acknowledge", zap.String("subject", f.Subject()), zap.Error(err))
	}
}

// GiveBack releases a message for redelivery, to any node, after nakDelay.
func GiveBack(msg jetstream.Msg) error { return msg.NakWithDelay(nakDelay) }

// nakDelay is how long a message that could not be recorded rests before any node may retry it.
const nakDelay = time.Second

// Recording is an answer to be recorded.
type Recording struct {
	settle.Answer
	Run   uuid.UUID  // according to the answer
	Trace wire.Trace // of the answer; zero: none
}

// Record commits answers. apart means that only one of several may be at fault: the caller records one at a time.
func (k *Core) Record(ctx context.Context, batch []Recording) (out settle.Recorded, apart bool, err error) {
	k.Faults.Hit(fault.RecordBefore)
	answers := make([]settle.Answer, len(batch))
	ends := make([]func(TraceOutcome), len(batch))
	for i := range batch {
		a := &batch[i]
		answers[i], ends[i] = a.Answer, func(TraceOutcome) {}
		if k.Tracer != nil && !a.Trace.IsZero() {
			ends[i] = k.Tracer.Recording(ctx, a.Trace, TracedReply{Run: a.Run, Slice: uuid.UUID(a.Slice),
				Endpoint: a.Endpoint, Service: a.Service, Slots: len(a.Slots), Final: a.Answered >= 0})
		}
	}
	begun := time.Now()
	out, err = k.Settling.Record(ctx, answers)
	if err != nil {
		for _, end := range ends {
			end(TraceOutcome{Err: err})
		}
		_, answered := errors.AsType[*pgconn.PgError](err)
		return out, len(batch) > 1 && (answered || workqueue.Refused(err)), err
	}
	k.Meter.Took(TimingRecord, time.Since(begun))
	k.Faults.Hit(fault.RecordCommitted)
	k.Stats.Commits.Add(1)
	for i, v := range out.Verdicts {
		ends[i](TraceOutcome{Taken: v.Taken, Stale: v.Stale})
		k.Stats.Slots.Add(int64(v.Taken))
		k.Stats.Duplicates.Add(int64(v.Duplicates))
		if v.Stale {
			k.Stats.Stale.Add(1)
			k.Log.Debug("an answer for an expired slice", zap.Stringer("slice", batch[i].Slice))
		}
	}
	return out, false, nil
}
