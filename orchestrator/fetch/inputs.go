package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/orchestrator/dispatch"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	dispatchstore "github.com/tranchehq/tranche/workqueue/dispatch"
)

// errTaken says that a slice is no longer this node's.
var errTaken = errors.New("the slice is somebody else's, or was taken back")

// read brings what a chunk is worked with, and the bytes of it that it holds of the node's share. Chunks are cut for
// the mean size of their block's parts; one that has far larger ones is cut once more, when they are seen.
func (f *Worker) read(ctx context.Context, job *fetchJob) (*fetch.Request, int64, error) {
	if err := f.reading.Acquire(ctx, 1); err != nil {
		return nil, 0, err
	}
	defer f.reading.Release(1)
	var large dispatch.LargeInputs
	req, size, err := f.requestOf(ctx, job, &large)
	if err == nil && !large.Items.Empty() {
		if err = large.Refuse(ctx, f.node, f.after, job.Assignment); err == nil {
			err = errTaken // others are claimed anew
		}
	}
	for err == nil && len(req.Items) < job.Mask.Count() {
		if err = f.cut(ctx, job, len(req.Items)); err == nil {
			req, size, err = f.requestOf(ctx, job, &large)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	size = min(size, fetchInputBytes)
	if err := f.inputs.Acquire(ctx, size); err != nil {
		return nil, 0, err
	}
	return req, size, nil
}

// cut leaves a job the first items of its slice; the others are claimed anew. What it read of them is read again, for a
// reset may have taken some of them back.
func (f *Worker) cut(ctx context.Context, job *fetchJob, items int) error {
	ctx, cancel := context.WithTimeout(ctx, kernel.ReadTimeout)
	defer cancel()
	first := job.Mask.Take(items)
	piece, err := f.node.Settling.Split(ctx, job.Session, job.ID, []bitfield.Set{first, job.Mask.AndNot(first)},
		job.Work.Timeout+dispatchstore.DefaultClaimTTL)
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

// requestOf reads the items of a slice and the parts that its step sees: the first ones, when all are too much. Items
// with parts that no step sees go to large instead.
func (f *Worker) requestOf(
	ctx context.Context, job *fetchJob, large *dispatch.LargeInputs,
) (*fetch.Request, int64, error) {
	req := &fetch.Request{Run: uuid.UUID(job.Run), Slice: uuid.UUID(job.ID), Step: job.Work.Name,
		StepNumber: int(job.Step), Attempt: job.Attempt, Generation: int(job.Generation), Rate: job.Work.Rate,
		Items: make([]fetch.Item, 0, job.Mask.Count())}
	if job.Params != nil {
		if err := json.Unmarshal(job.Params, &req.Params); err != nil {
			return nil, 0, fmt.Errorf("parameters of run %s: %w", job.Run, err)
		}
	}
	var size int64
	ctx, cancel := context.WithTimeout(ctx, kernel.ReadTimeout)
	defer cancel()
	want := dispatchstore.InputRequest{Run: job.Run, Block: job.Block, Mask: &job.Mask, Inputs: job.Work.Inputs,
		NoItem: job.Work.NoItem}
	err := dispatchstore.New(f.node.Store).EachInput(ctx, want, func(in dispatchstore.Input) bool {
		if large.Take(&job.Assignment, &in) {
			return true
		}
		of := sizeOf(&in)
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
			item.Parts[want.Inputs[i].Name] = fetch.Part{Data: slices.Clone(part.Data), ContentType: part.ContentType}
		}
		req.Items = append(req.Items, item)
		return true
	})
	return req, size, err
}

// sizeOf is how many bytes an item has with its parts.
func sizeOf(in *dispatchstore.Input) int64 {
	size := len(in.Key) + len(in.Payload)
	for i := range in.Parts {
		size += len(in.Parts[i].Data)
	}
	return int64(size)
}
