// Package span says what a node tells of its work to whoever traces it. It links no tracer.
package span

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
	Publishing(ctx context.Context, s Slice) (t wire.Trace, end func(error))
	// Fetching begins a span for a slice that the node works on itself. The context that it returns carries the span, as
	// t does for what is sent; end is called once, with why nothing of it will be recorded, or nil.
	Fetching(ctx context.Context, s Slice) (within context.Context, t wire.Trace, end func(error))
	// Recording begins a span for one try to record a message of a reply, within the trace t that the message carries. end
	// is called once.
	Recording(ctx context.Context, t wire.Trace, r Reply) (end func(Outcome))
}

// Slice identifies a slice that is published.
type Slice struct {
	Run, Slice                uuid.UUID
	Endpoint                  string
	Step, Attempt, Generation int
	Items                     int
}

// Reply identifies a message of a reply.
type Reply struct {
	Run, Slice        uuid.UUID
	Endpoint, Service string
	Slots             int
	Final             bool // no other message of the reply will follow, unless they overtook one another
}

// Outcome says what became of a message of a reply.
type Outcome struct {
	Taken int  // slots
	Stale bool // the slice was superseded
	Err   error
}
