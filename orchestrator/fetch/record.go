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
	// recordAgain is the first pause of a node that cannot record what it has fetched; it doubles up to recordAgainMax.
	recordAgain    = 100 * time.Millisecond
	recordAgainMax = time.Second
)

// codeRefused is the error code of results that PostgreSQL refuses.
const codeRefused = "refused"

// fetchResult is a part of what came of a chunk, on its way into the database.
type fetchResult struct {
	job    *fetchJob
	answer settle.Answer
	size   int64 // that it holds of the node's share
	trace  wire.Trace
	ended  func(error) // of the last one: ends the span
}

// hand gives a result to the recorders, when there is room for it. What finds none before ctx ends is dropped.
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

// over ends the span of a chunk, and its turn, with its last result.
func (r *fetchResult) over(err error) {
	if r.ended != nil {
		r.ended(err)
		r.job.left()
	}
}

// record takes results as they come, until all are taken after the end: one at once when there is one, many in a commit
// when they queue up. The channel is never closed: a call that was given up may still be about to hand something over.
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

// queued adds to a result those that wait behind it, as many as fit in a commit.
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

// recordBatch commits results. While PostgreSQL is unavailable it tries again, as long as the slices are this node's:
// no one else has what was fetched. When PostgreSQL refuses them, they are taken one by one, and one that it refuses
// for what is in it fails.
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
			return // the slices go back with the session
		}
	}
}

// ours leaves out what belongs to a session that is over.
func (f *Worker) ours(batch []fetchResult) []fetchResult {
	kept := make([]fetchResult, 0, len(batch))
	for _, r := range batch {
		if r.job.Session == f.node.Session() {
			kept = append(kept, r)
			continue
		}
		f.node.Stats.Stale.Add(1)
		f.node.Log.Debug("dropped what was fetched for a session that is over", zap.Stringer("slice", r.job.ID))
	}
	return kept
}

// refused turns an answer that PostgreSQL does not take into a failure of its chunk, once.
func (f *Worker) refused(r *fetchResult, err error) bool {
	f.node.Log.Error("what was fetched cannot be stored", zap.Stringer("run", r.job.Run),
		zap.Stringer("slice", r.job.ID), zap.String("step", r.job.Work.Name), zap.Error(err))
	if r.answer.Unreadable {
		return false // it comes back when its time is over
	}
	r.answer = settle.Answer{Slice: r.job.ID, Endpoint: r.job.Endpoint, Service: r.answer.Service, Unreadable: true,
		Failure: &workqueue.SlotError{Code: codeRefused, Message: "the result cannot be stored: " + err.Error()}}
	return true
}

// traceFetching begins the span of a chunk that the node works on itself. What comes of it is recorded within it, and a
// request that is sent for it carries it.
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

// endTaken ends calls whose slices were taken from the node meanwhile: their run was cancelled, or their items were
// reset. Nothing that they bring would count. Quick chunks are not asked about.
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
		f.node.Log.Debug("look for slices that were taken back", zap.Error(err)) // it is asked again
		return
	}
	for _, job := range long {
		if !slices.Contains(claimed, job.ID) {
			f.node.Log.Info("a chunk was taken back while it was worked on; its call is ended",
				zap.Stringer("run", job.Run), zap.Stringer("slice", job.ID), zap.String("step", job.Work.Name))
			job.cancel(errTaken)
		}
	}
}

// underWay returns the jobs whose calls take long, at most once in quickChunk.
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

// called notes that a job's call begins: its slice stays the one that it is.
func (f *Worker) called(job *fetchJob) {
	f.mu.Lock()
	defer f.mu.Unlock()
	job.begun = time.Now()
}
