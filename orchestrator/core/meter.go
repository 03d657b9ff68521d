package core

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Meter measures what [Counters] do not count. Its methods are called concurrently and must not block.
type Meter interface {
	// Took records the duration of something finished.
	Took(what Timing, d time.Duration)
	// Happened records that something happened n times. of is the endpoint, unless Event says otherwise.
	Happened(what Event, of string, n int)
	// Settled records what a transaction settled.
	Settled(of []settle.Settled)
}

// Timing is something measured.
type Timing int

// The timings.
const (
	TimingClaim      Timing = iota // a transaction that found work
	TimingPublish                  // of a request, from its claim until the stream has stored it
	TimingRecord                   // a transaction that recorded replies, or what the node fetched
	TimingCompletion               // of a run, from the arrival of its last reply until its event is published
)

// Event is something counted, mostly about requests.
type Event int

// The events.
const (
	EventSent        Event = iota // the stream has stored a request, or the node has begun to process a chunk itself
	EventAgain                    // the same, for a later attempt
	EventRedelivered              // a message of a reply was redelivered
	EventQuarantined              // a message of a reply was quarantined; of: the reason
	EventDead                     // a request became a dead letter
	EventCompleted                // a run was completed; of: OutcomeClean or OutcomeFailures
	EventLoaded                   // items of a run were read; of: empty
	EventLoadedBytes              // their bytes, as stored; of: empty
)

// Outcomes of a run.
const (
	OutcomeClean    = "clean"    // no item failed
	OutcomeFailures = "failures" // some did
)

// NoMeter measures nothing.
type NoMeter struct{}

// Took does nothing.
func (NoMeter) Took(Timing, time.Duration) {}

// Happened does nothing.
func (NoMeter) Happened(Event, string, int) {}

// Settled does nothing.
func (NoMeter) Settled([]settle.Settled) {}

// Sent counts a request that the stream has stored, or a chunk that the node has begun to process.
func (k *Core) Sent(endpoint string, attempt int) {
	k.Meter.Happened(EventSent, endpoint, 1)
	if attempt > 1 {
		k.Meter.Happened(EventAgain, endpoint, 1)
	}
}

// Tracer records spans about slices. Its methods are called concurrently and must not block.
type Tracer interface {
	// Publishing starts a span for a slice being published. The request carries t. end is called once, with the error
	// that kept the request out of the stream, if any.
	Publishing(ctx context.Context, s TracedSlice) (t wire.Trace, end func(error))
	// Fetching starts a span for a slice that the node processes itself. Local work uses within, requests carry t. end
	// is called once, with the reason why nothing will be recorded, or nil.
	Fetching(ctx context.Context, s TracedSlice) (within context.Context, t wire.Trace, end func(error))
	// Recording starts a span within t for one attempt to record a message of a reply. end is called once.
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
	Final             bool // the last message of the reply, unless they arrive out of order
}

// TraceOutcome is the outcome of recording a message of a reply.
type TraceOutcome struct {
	Taken int  // slots
	Stale bool // the slice was superseded
	Err   error
}
