package orchestrator

import (
	"context"

	"github.com/google/uuid"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
)

// call returns what asks an endpoint. A chunk that does not fit one message is asked for in several, one after the
// other.
func (f *fetching) asks(endpoint string) fetchCall {
	return func(ctx context.Context, req *fetch.Request, c *collector) ([]fetch.Slot, error) {
		if err := f.calls.open(); err != nil {
			return nil, err
		}
		for next := 0; next < len(req.Items); {
			var q *question
			q, next = f.question(endpoint, req, next, c)
			if q == nil {
				continue
			}
			if err := f.calls.ask(ctx, q, c); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
}

// question writes a request for the items from one on, as many as fit, and returns the first that is not in it. It
// answers an item that fits no message itself; q is nil when there is no other.
func (f *fetching) question(endpoint string, req *fetch.Request, from int, c *collector) (q *question, next int) {
	slice := req.Slice
	if from > 0 {
		slice = uuid.New() // of a request that is a part of the chunk
	}
	q = newQuestion(endpoint, slice)
	q.first = int(c.job.Block.Ordinal(0))
	meta := wire.Meta{Run: req.Run, Slice: q.slice, Root: req.Slice, Step: req.StepNumber, Attempt: req.Attempt,
		Generation: req.Generation, Mode: wire.ModeBatch, Origin: f.node.name,
		ReplyTo: f.calls.returns(q)}
	b := wire.NewRequestBuilder(endpoint, meta, int(f.node.nc.MaxPayload()))
	b.SetParams(c.job.params)
	for next = from; next < len(req.Items); next++ {
		item := &req.Items[next]
		if addItem(b, item, c) {
			q.asked.Add(item.Ordinal - q.first)
			continue
		}
		if b.Len() == 0 {
			c.Take(fetch.Slot{Ordinal: item.Ordinal, Err: &wire.SlotError{
				Code: CodeItemTooLarge, Message: f.node.tooLarge(c.job.work.Inputs)}})
			next++
		}
		break
	}
	if b.Len() == 0 {
		return nil, next
	}
	c.trace.SetHeader(q.put(b, meta.ReplyTo))
	return q, next
}

// addItem adds an item with the parts that the step sees.
func addItem(b *wire.RequestBuilder, item *fetch.Item, c *collector) bool {
	if len(c.job.work.Inputs) == 0 && item.Payload != nil {
		return b.Add(item.Ordinal, item.Key, item.Payload)
	}
	for _, input := range c.job.work.Inputs {
		if part, there := item.Parts[input.Name]; there {
			b.Part(input.Name, wire.Part{Data: part.Data, ContentType: part.ContentType})
		}
	}
	return b.AddParts(item.Ordinal, item.Key, item.Payload)
}
