package record

import (
	"context"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/span"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// traceRecording begins a span for each reply that belongs to a trace. The function that it returns ends them.
func (r *Recorder) traceRecording(ctx context.Context, read []reading) (end func(settle.Recorded, error)) {
	if r.cfg.Tracer == nil {
		return func(settle.Recorded, error) {}
	}
	ends := make([]func(span.Outcome), len(read))
	for i := range read {
		h, a := read[i].msg.Headers(), &read[i].answer
		if t := wire.TraceOfHeader(h); !t.IsZero() {
			run, _ := uuid.Parse(h.Get(wire.HeaderRun)) // it was parsed before
			ends[i] = r.cfg.Tracer.Recording(ctx, t, span.Reply{Run: run, Slice: uuid.UUID(a.Slice), Endpoint: a.Endpoint,
				Service: a.Service, Slots: len(a.Slots), Final: a.Answered >= 0})
		}
	}
	return func(out settle.Recorded, err error) {
		for i, end := range ends {
			if end == nil {
				continue
			}
			outcome := span.Outcome{Err: err}
			if err == nil {
				outcome.Taken, outcome.Stale = out.Verdicts[i].Taken, out.Verdicts[i].Stale
			}
			end(outcome)
		}
	}
}
