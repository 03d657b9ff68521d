package orchestrator

import (
	"context"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue/settle"
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
	Recording(ctx context.Context, t wire.Trace, r TracedReply) (end func(TracedOutcome))
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

// TracedOutcome says what became of a message of a reply.
type TracedOutcome struct {
	Taken int  // slots
	Stale bool // the slice was superseded
	Err   error
}

// tracePublishing begins the span of a publication and lets its request carry it.
func (n *Node) tracePublishing(ctx context.Context, p *publication) {
	p.published = func(error) {}
	if n.cfg.Tracer == nil {
		return
	}
	var t wire.Trace
	t, p.published = n.cfg.Tracer.Publishing(ctx, TracedSlice{Run: uuid.UUID(p.Run), Slice: uuid.UUID(p.ID),
		Endpoint: p.endpoint, Step: int(p.Step), Attempt: p.Attempt, Generation: int(p.Generation), Items: p.Mask.Count()})
	t.SetHeader(p.msg.Header)
}

// traceRecording begins a span for each reply that belongs to a trace. The function that it returns ends them.
func (n *Node) traceRecording(ctx context.Context, read []reading) (end func(settle.Recorded, error)) {
	if n.cfg.Tracer == nil {
		return func(settle.Recorded, error) {}
	}
	ends := make([]func(TracedOutcome), len(read))
	for i := range read {
		h, a := read[i].msg.Headers(), &read[i].answer
		if t := wire.TraceOfHeader(h); !t.IsZero() {
			run, _ := uuid.Parse(h.Get(wire.HeaderRun)) // it was parsed before
			ends[i] = n.cfg.Tracer.Recording(ctx, t, TracedReply{Run: run, Slice: uuid.UUID(a.Slice), Endpoint: a.Endpoint,
				Service: a.Service, Slots: len(a.Slots), Final: a.Answered >= 0})
		}
	}
	return func(out settle.Recorded, err error) {
		for i, end := range ends {
			if end == nil {
				continue
			}
			outcome := TracedOutcome{Err: err}
			if err == nil {
				outcome.Taken, outcome.Stale = out.Verdicts[i].Taken, out.Verdicts[i].Stale
			}
			end(outcome)
		}
	}
}

// traceFetching begins the span of a chunk that the node works on itself. What comes of it is recorded within it, and a
// request that is sent for it carries it.
func (f *fetching) traceFetching(ctx context.Context, c *collector) context.Context {
	tracer := f.node.cfg.Tracer
	if tracer == nil {
		return ctx
	}
	j := c.job
	ctx, c.trace, c.traced = tracer.Fetching(ctx, TracedSlice{Run: uuid.UUID(j.Run), Slice: uuid.UUID(j.ID),
		Endpoint: j.endpoint, Step: int(j.Step), Attempt: j.Attempt, Generation: int(j.Generation), Items: j.Mask.Count()})
	return ctx
}

// traceResults begins a span for each result that belongs to a trace. The function that it returns ends them.
func (f *fetching) traceResults(ctx context.Context, batch []fetchResult) (end func(settle.Recorded, error)) {
	if f.node.cfg.Tracer == nil {
		return func(settle.Recorded, error) {}
	}
	ends := make([]func(TracedOutcome), len(batch))
	for i := range batch {
		a := &batch[i].answer
		ends[i] = f.node.cfg.Tracer.Recording(ctx, batch[i].trace, TracedReply{Run: uuid.UUID(batch[i].job.Run),
			Slice: uuid.UUID(a.Slice), Endpoint: a.Endpoint, Service: a.Service, Slots: len(a.Slots), Final: a.Answered >= 0})
	}
	return func(out settle.Recorded, err error) {
		for i, end := range ends {
			outcome := TracedOutcome{Err: err}
			if err == nil {
				outcome.Taken, outcome.Stale = out.Verdicts[i].Taken, out.Verdicts[i].Stale
			}
			end(outcome)
		}
	}
}
