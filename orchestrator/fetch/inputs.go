package fetch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	dispatchstore "github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// errTaken means that this node no longer owns the slice.
var errTaken = errors.New("the slice is another node's, or was withdrawn")

// read returns a chunk's inputs and their bytes, holding as much of fetchInputBytes. Chunks are sized for the
// mean of their block, so read cuts some again. Parts in pieces are read last, and not for a direct step, whose service
// asks for them.
func (f *Worker) read(ctx context.Context, job *fetchJob) (*fetch.Request, int64, error) {
	if err := f.reading.Acquire(ctx, 1); err != nil {
		return nil, 0, err
	}
	defer f.reading.Release(1)
	req, size, err := f.requestOf(ctx, job)
	for err == nil && len(req.Items)+len(job.gone) < job.Mask.Count() {
		if err = f.cut(ctx, job, len(req.Items)+len(job.gone)); err == nil {
			req, size, err = f.requestOf(ctx, job)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	held := min(size, fetchInputBytes)
	if err := f.inputs.Acquire(ctx, held); err != nil {
		return nil, 0, err
	}
	if job.Work.Kind == workqueue.KindDirect || size > fetchItemLimit {
		return req, size, nil
	}
	if err := f.readLarge(ctx, job, req); err != nil {
		f.inputs.Release(held)
		return nil, 0, err
	}
	return req, size, nil
}

// largePart is a part in pieces, of an item of a request.
type largePart struct {
	item int
	step string
}

// readLarge reads the parts in pieces. Items with a changed part go from the request to job.gone.
func (f *Worker) readLarge(ctx context.Context, job *fetchJob, req *fetch.Request) error {
	gone := map[int]fetch.Slot{} // by ordinal
	for at, part := range job.large {
		item, ref := &req.Items[at.item], part.Ref
		sum, err := hex.DecodeString(ref.SHA256)
		if err != nil {
			return fmt.Errorf("the reference to a part: %w", err)
		}
		data := bytes.NewBuffer(make([]byte, 0, ref.Bytes))
		same, err := export.New(f.node.Store).Verify(ctx, part.Large.UUID, [sha256.Size]byte(sum), data)
		if err != nil {
			return err
		}
		if !same {
			gone[item.Ordinal] = fetch.Slot{Ordinal: item.Ordinal, Err: wire.NewSlotError(wire.CodePartGone, fmt.Sprintf(
				"the part of step %s is not the %d bytes that it was: deleted, or damaged; reset step %s to make it again",
				at.step, ref.Bytes, at.step), true)}
		}
		item.Parts[at.step] = fetch.Part{Data: data.Bytes(), ContentType: part.ContentType}
	}
	req.Items = slices.DeleteFunc(req.Items, func(i fetch.Item) bool { _, is := gone[i.Ordinal]; return is })
	job.gone = slices.AppendSeq(job.gone, maps.Values(gone))
	return nil
}

// forTheRest makes a call for the items that are left, and fails those that are gone.
func forTheRest(call fetchCall, gone []fetch.Slot) fetchCall {
	return func(ctx context.Context, req *fetch.Request, c *collector) (slots []fetch.Slot, err error) {
		if len(req.Items) > 0 {
			slots, err = call(ctx, req, c)
		}
		return append(slots, gone...), err
	}
}

// cut keeps the first items of a job's slice. They must be read again: a reset may have taken some back.
func (f *Worker) cut(ctx context.Context, job *fetchJob, items int) error {
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	first := job.Mask.Take(items)
	piece, err := f.claims.Split(ctx, job.Session, job.ID, []bitfield.Set{first, job.Mask.AndNot(first)},
		job.Work.Timeout+dispatchstore.DefaultClaimTTL, settle.TooMuch)
	if err != nil {
		return err
	}
	if piece == nil {
		return errTaken
	}
	job.Slice = *piece
	f.node.Stats.Splits.Add(1)
	f.node.Wake()
	return nil
}

// requestOf reads items and the results that the step sees, up to fetchChunkLimit. Of parts in pieces it has the
// references; job.large says which these are.
func (f *Worker) requestOf(ctx context.Context, job *fetchJob) (*fetch.Request, int64, error) {
	req := &fetch.Request{Run: uuid.UUID(job.Run), Slice: uuid.UUID(job.ID), Step: job.Work.Name,
		StepNumber: int(job.Step), Attempt: job.Attempt, Generation: int(job.Generation), Rate: job.Work.Rate,
		Items: make([]fetch.Item, 0, job.Mask.Count())}
	job.gone = nil
	fail := func(of workqueue.Ordinal, why error) {
		job.gone = append(job.gone, fetch.Slot{Ordinal: int(of), Err: &wire.SlotError{Code: core.CodeItemDamaged,
			Message: why.Error()}})
	}
	var err error
	if job.params, err = f.node.Params(ctx, job.Run, job.Params); errors.Is(err, database.ErrDamaged) {
		for bit := range job.Mask.All() {
			fail(job.Block.Ordinal(bit), err)
		}
		return req, 0, nil
	}
	if err == nil && job.params != nil {
		err = json.Unmarshal(job.params, &req.Params)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("parameters of run %s: %w", job.Run, err)
	}
	var size int64
	job.large = map[largePart]dispatchstore.PartInput{}
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	want := dispatchstore.InputRequest{Run: job.Run, Block: job.Block, Mask: &job.Mask, Step: job.Work.Name,
		Inputs: job.Work.Inputs, NoItem: job.Work.NoItem}
	err = f.store.EachInput(ctx, want, func(in dispatchstore.Input) bool {
		if in.Damaged != nil {
			fail(in.Ordinal, in.Damaged)
			return true
		}
		of := sizeOf(&in, job.Work.Kind)
		if size+of > fetchChunkLimit && len(req.Items) > 0 {
			return false
		}
		size += of
		item := fetch.Item{Ordinal: int(in.Ordinal), Key: string(in.Key), Payload: slices.Clone(in.Payload)}
		for i := range in.Parts {
			part := &in.Parts[i]
			if part.Missing {
				continue
			}
			if item.Parts == nil {
				item.Parts = make(map[string]fetch.Part, len(in.Parts))
			}
			name := want.Inputs[i].Name
			item.Parts[name] = fetch.Part{Data: slices.Clone(part.Data), ContentType: part.ContentType}
			if part.Large.Valid {
				job.large[largePart{len(req.Items), name}] = *part
			}
		}
		req.Items = append(req.Items, item)
		return true
	})
	return req, size, err
}

func sizeOf(in *dispatchstore.Input, kind workqueue.Kind) int64 {
	size := int64(len(in.Key) + len(in.Payload))
	for i := range in.Parts {
		part := &in.Parts[i]
		size += int64(len(part.Data))
		if kind != workqueue.KindDirect {
			size += part.Ref.Bytes
		}
	}
	return size
}

// tooLarge replaces the call for an item that a node does not hold in memory.
func tooLarge(inputs []workqueue.StepInput, size int64) fetchCall {
	return func(context.Context, *fetch.Request, *collector) ([]fetch.Slot, error) {
		return nil, wire.Fail(core.CodeItemTooLarge, "the item%s has %d bytes, and a node takes at most %d: leave some out "+
			"of the step's inputs", core.WithParts(inputs), size, fetchItemLimit)
	}
}

// asks returns a call to an endpoint. A chunk too large for one message is sent in several, one at a time.
func (f *Worker) asks(endpoint string) fetchCall {
	return func(ctx context.Context, req *fetch.Request, c *collector) ([]fetch.Slot, error) {
		if err := f.calls.Open(); err != nil {
			return nil, err
		}
		for next := 0; next < len(req.Items); {
			var q *core.Question
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

// question builds a request for as many items as fit, and returns the index of the next. It fails an item that fits
// no message; q is nil if that was the only one.
func (f *Worker) question(endpoint string, req *fetch.Request, from int, c *collector) (q *core.Question, next int) {
	slice := req.Slice
	if from > 0 {
		slice = uuid.New() // of a request for part of the chunk
	}
	q = core.NewQuestion(endpoint, slice)
	q.First = int(c.job.Block.Ordinal(0))
	meta := wire.Meta{Run: req.Run, Slice: q.Slice, Root: req.Slice, Step: req.StepNumber, Attempt: req.Attempt,
		Generation: req.Generation, Mode: wire.ModeBatch, Origin: f.node.Name,
		ReplyTo: f.calls.Returns(q)}
	b := wire.NewRequestBuilder(endpoint, meta, int(f.node.NC.MaxPayload()))
	b.SetParams(c.job.params)
	for next = from; next < len(req.Items); next++ {
		item := &req.Items[next]
		if addItem(b, req, next, c.job) {
			q.Asked.Add(item.Ordinal - q.First)
			continue
		}
		if b.Len() == 0 {
			c.Take(fetch.Slot{Ordinal: item.Ordinal, Err: &wire.SlotError{
				Code: core.CodeItemTooLarge, Message: f.node.TooLarge(c.job.Work.Inputs)}})
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

func addItem(b *wire.RequestBuilder, req *fetch.Request, n int, job *fetchJob) bool {
	item := &req.Items[n]
	if len(job.Work.Inputs) == 0 && item.Payload != nil {
		return b.Add(item.Ordinal, item.Key, item.Payload)
	}
	for _, input := range job.Work.Inputs {
		part, there := item.Parts[input.Name]
		if !there {
			continue
		}
		of := wire.Part{Data: part.Data, ContentType: part.ContentType}
		if in, inPieces := job.large[largePart{n, input.Name}]; inPieces {
			of.Ref = new(wire.PartRef(in.Ref))
		}
		b.Part(input.Name, of)
	}
	return b.ReferParts(item.Ordinal, item.Key, item.Payload)
}
