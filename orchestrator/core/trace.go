package core

import (
	"context"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Tracer records spans of what a node does with slices. A node without one does nothing about traces. Its methods are
// called from several goroutines at once and must not block.
type Tracer interface {
	// Publishing begins a span for a slice on its way into the stream. The request carries the trace context that it
	// returns; end is called once, with the error that kept the request from the stream, if any.
	Publishing(ctx context.Context, s TracedSlice) (t wire.Trace, end func(error))
	// Fetching begins a span for a slice that the node works on itself. The context that it returns carries the span, as
	// t does for what is sent; end is called once, with why nothing of it will be recorded, or nil.
	Fetching(ctx context.Context, s TracedSlice) (within context.Context, t wire.Trace, end func(error))
	// Recording begins a span for one try to record a message of a reply, within the trace t that the message carries. end
	// is called once.
	Recording(ctx context.Context, t wire.Trace, r TracedReply) (end func(TraceOutcome))
}

// TracedSlice identifies a slice that is published.
type TracedSlice struct {
	Run, Slice                uuid.UUID
	Endpoint                  string
	Step, Attempt, Generation int
	Items                     int
}

// TracedReply identifies a message of a reply.
type TracedReply struct {
	Run, Slice        uuid.UUID
	Endpoint, Service string
	Slots             int
	Final             bool // no other message of the reply will follow, unless they overtook one another
}

// TraceOutcome says what became of a message of a reply.
type TraceOutcome struct {
	Taken int  // slots
	Stale bool // the slice was superseded
	Err   error
}
