package fetch

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// recordAgain is the first pause after a failure to record results; it doubles up to recordAgainMax.
	recordAgain    = 100 * time.Millisecond
	recordAgainMax = time.Second
)

const codeRefused = "refused"

type fetchResult struct {
	job    *fetchJob
	answer settle.Answer
	size   int64 // share of fetchResultBytes
	trace  wire.Trace
	ended  func(error) // ends the span; set on the chunk's last result
}

// hand passes a result to the recorders once there is space for it. If ctx ends first, it is dropped.
func (f *Worker) hand(ctx context.Context, r fetchResult) {
	r.size = min(r.size, fetchResultBytes)
	if f.held.Acquire(ctx, r.size) == nil {
		select {
		case f.results <- r:
			return
		case <-ctx.Done():
			f.held.Release(r.size)
		}
	}
	r.over(context.Cause(ctx))
}

// over ends the chunk's span and turn, if this is its last result.
func (r *fetchResult) over(err error) {
	if r.ended != nil {
		r.ended(err)
		r.job.left()
	}
}

// record records results until none is left after the end. The channel is never closed: an abandoned call may still
// hand one over.
func (f *Worker) record(ctx context.Context) {
	for {
		var first fetchResult
		select {
		case first = <-f.results:
		case <-f.allHanded:
			select {
			case first = <-f.results:
			default:
				return
			}
		}
		batch := f.queued(first)
		f.recordBatch(ctx, batch)
		for i := range batch {
			f.held.Release(batch[i].size)
			batch[i].over(nil)
		}
	}
}

func (f *Worker) queued(first fetchResult) []fetchResult {
	batch, size := []fetchResult{first}, first.size
	for len(batch) < f.cfg.RecordBatch && size < core.RecordBytes {
		select {
		case r := <-f.results:
			batch, size = append(batch, r), size+r.size
		default:
			return batch
		}
	}
	return batch
}

// recordBatch commits results. It retries as long as this node owns the slices, since the results exist nowhere else.
// If PostgreSQL refuses a batch, it records one at a time; a refused result fails its chunk.
func (f *Worker) recordBatch(ctx context.Context, batch []fetchResult) {
	n := f.node
	again := backoff.Exponential{First: recordAgain, Longest: recordAgainMax}
	for {
		batch = f.ours(batch)
		if len(batch) == 0 {
			return
		}
		answers := make([]core.Recording, len(batch))
		for i, r := range batch {
			answers[i] = core.Recording{Answer: r.answer, Run: uuid.UUID(r.job.Run), Trace: r.trace}
		}
		begun := time.Now()
		out, apart, err := f.outcomes.Record(ctx, answers)
		switch {
		case err == nil:
			f.after.Seen(out, begun)
			return
		case apart:
			for i := range batch {
				f.recordBatch(ctx, batch[i:i+1])
			}
			return
		case workqueue.Refused(err):
			if !f.refused(&batch[0], err) {
				return
			}
			continue
		}
		n.Log.Warn("cannot record what was fetched; trying again", zap.Int("chunks", len(batch)), zap.Error(err))
		n.Stats.RecordedAgain.Add(1)
		if again.Wait(ctx) != nil {
			return // the end of the session releases the slices
		}
	}
}

func (f *Worker) ours(batch []fetchResult) []fetchResult {
	kept := make([]fetchResult, 0, len(batch))
	for _, r := range batch {
		if r.job.Session == f.node.Session() {
			kept = append(kept, r)
			continue
		}
		f.node.Stats.Stale.Add(1)
		f.node.Log.Debug("dropped what was fetched for an expired session", zap.Stringer("slice", r.job.ID))
	}
	return kept
}

// refused turns an answer that PostgreSQL refuses into a failure of its chunk, once.
func (f *Worker) refused(r *fetchResult, err error) bool {
	f.node.Log.Error("what was fetched cannot be stored", zap.Stringer("run", r.job.Run),
		zap.Stringer("slice", r.job.ID), zap.String("step", r.job.Work.Name), zap.Error(err))
	if r.answer.Unreadable {
		return false // the slice is released when its claim expires
	}
	r.answer = settle.Answer{Slice: r.job.ID, Endpoint: r.job.Endpoint, Service: r.answer.Service, Unreadable: true,
		Failure: &workqueue.SlotError{Code: codeRefused, Message: "the result cannot be stored: " + err.Error()}}
	return true
}

// traceFetching starts the span of a chunk. Its recording, and requests sent for it, belong to that span.
func (f *Worker) traceFetching(ctx context.Context, c *collector) context.Context {
	tracer := f.node.Tracer
	if tracer == nil {
		return ctx
	}
	j := c.job
	ctx, c.trace, c.traced = tracer.Fetching(ctx, core.TracedSlice{Run: uuid.UUID(j.Run), Slice: uuid.UUID(j.ID),
		Endpoint: j.Endpoint, Step: int(j.Step), Attempt: j.Attempt, Generation: int(j.Generation), Items: j.Mask.Count()})
	return ctx
}

// endTaken cancels long calls whose slices were withdrawn, by a cancelled run or a reset.
func (f *Worker) endTaken(ctx context.Context) {
	session := f.node.Session()
	long := f.underWay(session)
	if len(long) == 0 {
		return
	}
	ids := make([]workqueue.SliceID, len(long))
	for i, job := range long {
		ids[i] = job.ID
	}
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	claimed, err := f.store.StillClaimed(ctx, session, ids)
	if err != nil {
		f.node.Log.Debug("find withdrawn slices", zap.Error(err)) // retried at the next call
		return
	}
	for _, job := range long {
		if !slices.Contains(claimed, job.ID) {
			f.node.Log.Info("a chunk was withdrawn during its call; the call is cancelled",
				zap.Stringer("run", job.Run), zap.Stringer("slice", job.ID), zap.String("step", job.Work.Name))
			job.cancel(errTaken)
		}
	}
}

func (f *Worker) underWay(session workqueue.SessionID) (long []*fetchJob) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) < quickChunk {
		return nil
	}
	f.looked = time.Now()
	for job := range f.jobs {
		if job.Session == session && !job.begun.IsZero() && time.Since(job.begun) > quickChunk {
			long = append(long, job)
		}
	}
	return long
}
