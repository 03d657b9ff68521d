package orchestrator

import (
	"context"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/workqueue"
)

// Tracer records spans of what a node does with slices. A node without one does nothing about traces. Its methods are
// called from several goroutines at once and must not block.
type Tracer interface {
	// Publishing begins a span for a slice on its way into the stream. The request carries the trace context that it
	// returns; end is called once, with the error that kept the request from the stream, if any.
	Publishing(ctx context.Context, s TracedSlice) (t endpoints.Trace, end func(error))
	// Recording begins a span for one try to record a message of a reply, within the trace t that the message carries. end
	// is called once.
	Recording(ctx context.Context, t endpoints.Trace, r TracedReply) (end func(TracedOutcome))
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
	var t endpoints.Trace
	t, p.published = n.cfg.Tracer.Publishing(ctx, TracedSlice{Run: uuid.UUID(p.Run), Slice: uuid.UUID(p.ID),
		Endpoint: p.endpoint, Step: int(p.Step), Attempt: p.Attempt, Generation: int(p.Generation), Items: p.Mask.Count()})
	t.SetHeader(p.msg.Header)
}

// traceRecording begins a span for each reply that belongs to a trace. The function that it returns ends them.
func (n *Node) traceRecording(ctx context.Context, read []reading) (end func(workqueue.Recorded, error)) {
	if n.cfg.Tracer == nil {
		return func(workqueue.Recorded, error) {}
	}
	ends := make([]func(TracedOutcome), len(read))
	for i := range read {
		h, a := read[i].msg.Headers(), &read[i].answer
		if t := endpoints.TraceOfHeader(h); !t.IsZero() {
			run, _ := uuid.Parse(h.Get(endpoints.HeaderRun)) // it was parsed before
			ends[i] = n.cfg.Tracer.Recording(ctx, t, TracedReply{Run: run, Slice: uuid.UUID(a.Slice), Endpoint: a.Endpoint,
				Service: a.Service, Slots: len(a.Slots), Final: a.Answered >= 0})
		}
	}
	return func(out workqueue.Recorded, err error) {
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
