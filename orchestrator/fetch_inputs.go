package orchestrator

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/workqueue"
)

// read brings what a chunk is worked with, and the bytes of it that it holds of the node's share.
func (f *fetching) read(ctx context.Context, job *fetchJob) (*fetch.Request, int64, error) {
	if err := f.reading.Acquire(ctx, 1); err != nil {
		return nil, 0, err
	}
	defer f.reading.Release(1)
	req, size, err := f.requestOf(ctx, job)
	if err != nil {
		return nil, 0, err
	}
	size = min(size, fetchInputBytes)
	if err := f.inputs.Acquire(ctx, size); err != nil {
		return nil, 0, err
	}
	return req, size, nil
}

// requestOf reads the items of a slice and the parts that its step sees.
func (f *fetching) requestOf(ctx context.Context, job *fetchJob) (*fetch.Request, int64, error) {
	req := &fetch.Request{Run: uuid.UUID(job.Run), Slice: uuid.UUID(job.ID), Step: job.work.Name,
		StepNumber: int(job.Step), Attempt: job.Attempt, Generation: int(job.Generation), Rate: job.work.Rate,
		Items: make([]fetch.Item, 0, job.Mask.Count())}
	if job.params != nil {
		if err := json.Unmarshal(job.params, &req.Params); err != nil {
			return nil, 0, fmt.Errorf("parameters of run %s: %w", job.Run, err)
		}
	}
	var size int64
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	want := workqueue.InputRequest{Run: job.Run, Block: job.Block, Mask: &job.Mask, Inputs: job.work.Inputs,
		NoItem: job.work.NoItem}
	err := f.node.store.EachInput(ctx, want, func(in workqueue.Input) bool {
		item := fetch.Item{Ordinal: int(in.Ordinal), Key: string(in.Key), Payload: slices.Clone(in.Payload)}
		size += int64(len(item.Key) + len(item.Payload))
		for i := range in.Parts {
			part := &in.Parts[i]
			if part.Missing {
				continue
			}
			if item.Parts == nil {
				item.Parts = make(map[string]fetch.Part, len(in.Parts))
			}
			item.Parts[want.Inputs[i].Name] = fetch.Part{Data: slices.Clone(part.Data), ContentType: part.ContentType}
			size += int64(len(part.Data))
		}
		req.Items = append(req.Items, item)
		return true
	})
	return req, size, err
}
