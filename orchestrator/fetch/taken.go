package fetch

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
	dispatchstore "github.com/tranchehq/tranche/workqueue/dispatch"
)

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
	ctx, cancel := context.WithTimeout(ctx, kernel.ReadTimeout)
	defer cancel()
	claimed, err := dispatchstore.New(f.node.Store).StillClaimed(ctx, session, ids)
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
