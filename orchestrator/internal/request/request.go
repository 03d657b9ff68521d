// Package request looks for the requests of slices in the work stream, and takes them out of it.
package request

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Presence says whether a request lies in the work stream.
type Presence int

// What is known of a request.
const (
	Unknown Presence = iota // JetStream did not say
	There
	Gone
)

const (
	// lookups bounds how often one look asks JetStream for requests, one by one; a large one counts once more for each
	// lookupBytes. The rest is left to the next.
	lookups     = 200
	lookupBytes = 64 << 10
)

// removeTimeout bounds the removal of requests.
const removeTimeout = 2 * time.Second

// Look tells of requests whether they lie in the work stream. It is for one goroutine.
type Look struct {
	js     jetstream.JetStream
	Stream jetstream.Stream
	first  uint64 // a purge would have left the stream's beginning behind a request
	looked int
	flows  map[string]Presence // whether an endpoint is one
}

// NewLook returns a look for the requests of slices.
func NewLook(ctx context.Context, k *kernel.Kernel) *Look {
	stream, err := k.JS.Stream(ctx, wire.StreamWork)
	if err != nil {
		k.Log.Debug("look for requests", zap.Error(err))
		return &Look{}
	}
	return &Look{js: k.JS, Stream: stream, first: stream.CachedInfo().State.FirstSeq, flows: map[string]Presence{}}
}

// Request returns where a request is. Whoever may have it counts it as there when it is suspended between two stages of
// a flow. Past the bounds of a look, what nobody was handed is taken to be there still, and gets more time.
func (l *Look) Request(ctx context.Context, o settle.Overdue) Presence {
	if l.Stream == nil {
		return Unknown
	}
	found := Gone
	if uint64(o.StreamSeq) >= l.first {
		if l.looked >= lookups && !o.Handed {
			return There
		}
		found = l.message(ctx, o)
	}
	if found != Gone || !o.Handed {
		return found
	}
	return l.suspended(ctx, o)
}

func (l *Look) message(ctx context.Context, o settle.Overdue) Presence {
	if l.looked++; l.looked > lookups {
		return Unknown
	}
	msg, err := l.Stream.GetMsg(ctx, uint64(o.StreamSeq))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return Gone
	case err != nil:
		return Unknown
	case msg.Header.Get(wire.HeaderMsgID) != o.ID.String():
		return Gone
	}
	l.looked += len(msg.Data) / lookupBytes
	return There
}

// suspended looks for the state of a chunk of a flow, whose request is acknowledged when the state is stored.
func (l *Look) suspended(ctx context.Context, o settle.Overdue) Presence {
	isFlow, known := l.flows[o.Endpoint]
	if !known {
		_, err := l.js.Consumer(ctx, wire.StreamStage, wire.ConsumerName(o.Endpoint))
		isFlow = whether(err, jetstream.ErrConsumerNotFound)
		l.flows[o.Endpoint] = isFlow
	}
	if isFlow != There {
		return isFlow
	}
	states, err := l.js.Stream(ctx, wire.StreamFlow)
	if err != nil {
		return Unknown
	}
	for _, subject := range wire.FlowStates(o.Endpoint, uuid.UUID(o.ID)) {
		if l.looked++; l.looked > lookups {
			return Unknown
		}
		_, err := states.GetLastMsgForSubject(ctx, subject)
		if found := whether(err, jetstream.ErrMsgNotFound); found != Gone {
			return found
		}
	}
	return Gone
}

// whether reads an answer of JetStream's to a question for something that may not be there.
func whether(err, missing error) Presence {
	switch {
	case err == nil:
		return There
	case errors.Is(err, missing):
		return Gone
	default:
		return Unknown
	}
}

// Remove takes the requests of slices that have ended out of the work stream, so that no service works on them
// in vain. It is a courtesy, of bounded length: a request that stays is answered with a stale reply. The message id is
// compared first, since a sequence of an earlier stream may belong to another request now.
func Remove(ctx context.Context, k *kernel.Kernel, requests []workqueue.Sent) {
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
