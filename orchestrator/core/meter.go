package core

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Meter measures what a node does, beside what its [Counters] count. Its methods are called from several goroutines at
// once and must not block.
type Meter interface {
	// Took is told how long something took that was done.
	Took(what Timing, d time.Duration)
	// Happened is told of something that happened n times. Of is the endpoint, unless Event says otherwise.
	Happened(what Event, of string, n int)
	// Settled is told of what a transaction settled.
	Settled(of []settle.Settled)
}

// Timing is something that takes a time.
type Timing int

// What takes a time.
const (
	TimingClaim      Timing = iota // a transaction that brought work
	TimingPublish                  // of a request, from its claim until the stream has it
	TimingRecord                   // a transaction that recorded replies, or what the node has fetched
	TimingCompletion               // of a run, from its last reply's arrival until the event that says so is published
)

// Event is something that happens, most often to requests.
type Event int

// What happens.
const (
	EventSent        Event = iota // a request: the stream has it, or the node has begun to work on a chunk itself
	EventAgain                    // the same, when it is not the first attempt
	EventRedelivered              // a message of its reply was delivered again
	EventQuarantined              // a message of its reply was put aside; of: the reason
	EventDead                     // it was kept as a dead letter
	EventCompleted                // a run was completed; of: OutcomeClean or OutcomeFailures
	EventLoaded                   // items of a run were read; of nothing
	EventLoadedBytes              // the bytes of these, as they are stored; of nothing
)

// What becomes of a run.
const (
	OutcomeClean    = "clean"    // no item failed
	OutcomeFailures = "failures" // some did
)

// NoMeter measures nothing.
type NoMeter struct{}

// Took implements Meter.
func (NoMeter) Took(Timing, time.Duration) {}

// Happened implements Meter.
func (NoMeter) Happened(Event, string, int) {}

// Settled implements Meter.
func (NoMeter) Settled([]settle.Settled) {}

// Sent counts a request that the stream has, or a chunk that the node has begun to work on.
func (k *Core) Sent(endpoint string, attempt int) {
	k.Meter.Happened(EventSent, endpoint, 1)
	if attempt > 1 {
		k.Meter.Happened(EventAgain, endpoint, 1)
	}
}

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
