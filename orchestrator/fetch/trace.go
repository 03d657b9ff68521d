package fetch

import (
	"context"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/orchestrator/span"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// traceFetching begins the span of a chunk that the node works on itself. What comes of it is recorded within it, and a
// request that is sent for it carries it.
func (f *Worker) traceFetching(ctx context.Context, c *collector) context.Context {
	tracer := f.cfg.Tracer
	if tracer == nil {
		return ctx
	}
	j := c.job
	ctx, c.trace, c.traced = tracer.Fetching(ctx, span.Slice{Run: uuid.UUID(j.Run), Slice: uuid.UUID(j.ID),
		Endpoint: j.Endpoint, Step: int(j.Step), Attempt: j.Attempt, Generation: int(j.Generation), Items: j.Mask.Count()})
	return ctx
}

// traceResults begins a span for each result that belongs to a trace. The function that it returns ends them.
func (f *Worker) traceResults(ctx context.Context, batch []fetchResult) (end func(settle.Recorded, error)) {
	if f.cfg.Tracer == nil {
		return func(settle.Recorded, error) {}
	}
	ends := make([]func(span.Outcome), len(batch))
	for i := range batch {
		a := &batch[i].answer
		ends[i] = f.cfg.Tracer.Recording(ctx, batch[i].trace, span.Reply{Run: uuid.UUID(batch[i].job.Run),
			Slice: uuid.UUID(a.Slice), Endpoint: a.Endpoint, Service: a.Service, Slots: len(a.Slots), Final: a.Answered >= 0})
	}
	return func(out settle.Recorded, err error) {
		for i, end := range ends {
			outcome := span.Outcome{Err: err}
			if err == nil {
				outcome.Taken, outcome.Stale = out.Verdicts[i].Taken, out.Verdicts[i].Stale
			}
			end(outcome)
		}
	}
}
