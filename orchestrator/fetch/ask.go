package fetch

import (
	"context"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/orchestrator/internal/direct"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
)

// call returns what asks an endpoint. A chunk that does not fit one message is asked for in several, one after the
// other.
func (f *Worker) asks(endpoint string) fetchCall {
	return func(ctx context.Context, req *fetch.Request, c *collector) ([]fetch.Slot, error) {
		if err := f.calls.Open(); err != nil {
			return nil, err
		}
		for next := 0; next < len(req.Items); {
			var q *direct.Question
			q, next = f.question(endpoint, req, next, c)
			if q == nil {
				continue
			}
			if err := f.calls.Ask(ctx, q, c); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
}

// question writes a request for the items from one on, as many as fit, and returns the first that is not in it. It
// answers an item that fits no message itself; q is nil when there is no other.
func (f *Worker) question(endpoint string, req *fetch.Request, from int, c *collector) (q *direct.Question, next int) {
	slice := req.Slice
	if from > 0 {
		slice = uuid.New() // of a request that is a part of the chunk
	}
	q = direct.NewQuestion(endpoint, slice)
	q.First = int(c.job.Block.Ordinal(0))
	meta := wire.Meta{Run: req.Run, Slice: q.Slice, Root: req.Slice, Step: req.StepNumber, Attempt: req.Attempt,
		Generation: req.Generation, Mode: wire.ModeBatch, Origin: f.node.Name,
		ReplyTo: f.calls.Returns(q)}
	b := wire.NewRequestBuilder(endpoint, meta, int(f.node.NC.MaxPayload()))
	b.SetParams(c.job.Params)
	for next = from; next < len(req.Items); next++ {
		item := &req.Items[next]
		if addItem(b, item, c) {
			q.Asked.Add(item.Ordinal - q.First)
			continue
		}
		if b.Len() == 0 {
			c.Take(fetch.Slot{Ordinal: item.Ordinal, Err: &wire.SlotError{
				Code: kernel.CodeItemTooLarge, Message: f.node.TooLarge(c.job.Work.Inputs)}})
			next++
		}
		break
	}
	if b.Len() == 0 {
		return nil, next
	}
	c.trace.SetHeader(q.Put(b, meta.ReplyTo))
	return q, next
}

// addItem adds an item with the parts that the step sees.
func addItem(b *wire.RequestBuilder, item *fetch.Item, c *collector) bool {
	if len(c.job.Work.Inputs) == 0 && item.Payload != nil {
		return b.Add(item.Ordinal, item.Key, item.Payload)
	}
	for _, input := range c.job.Work.Inputs {
		if part, there := item.Parts[input.Name]; there {
			b.Part(input.Name, wire.Part{Data: part.Data, ContentType: part.ContentType})
		}
	}
	return b.AddParts(item.Ordinal, item.Key, item.Payload)
}
