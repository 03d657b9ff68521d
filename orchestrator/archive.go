package orchestrator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/retention"
)

// Archive stores runs and rows of the audit log before retention deletes them. Each method may be repeated, also by two
// nodes at once, and returns nil only if all of it is stored. The leader calls Run for several runs concurrently.
type Archive interface {
	// Target is the human-readable name of the storage.
	Target() string
	// Check reports whether it takes objects.
	Check(ctx context.Context) error
	// Run stores a run and returns in which state ([retention.Store.RunState]); empty: the run changed meanwhile.
	Run(ctx context.Context, run workqueue.RunID) (state string, err error)
	// Audit stores the rows of the audit log after a seal, up to another one.
	Audit(ctx context.Context, after, last int64) error
}

var errNoArchive = errors.New("the leader was started without --archive; set it on all nodes")

// openArchive begins a round: the store learns of the archive before anything is deleted. Runs and the audit log wait
// while there is one that cannot be used.
func (r *retentionRound) openArchive(ctx context.Context) error {
	r.unstored = errNoArchive
	if r.archive != nil {
		r.unstored = r.archive.Check(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	used, err := r.noteArchive(ctx, r.unstored != nil)
	if !used {
		r.unstored = nil
	}
	r.waits = r.unstored != nil
	return err
}

// noteArchive saves which archive there is, and, once that is known, why something is not in it.
func (r *retentionRound) noteArchive(ctx context.Context, known bool) (used bool, err error) {
	target, reason := "", ""
	if r.archive != nil {
		target = r.archive.Target()
	}
	if r.unstored != nil {
		reason = core.Readable(r.unstored)
	}
	if !known {
		return r.store.NoteArchive(ctx, r.lease, target, nil)
	}
	return r.store.NoteArchive(ctx, r.lease, target, &reason)
}

// notStored notes an error of the archive. Unless it takes objects anyway, so that the cause is in what should be
// stored, the rest waits for the next round.
func (r *retentionRound) notStored(ctx context.Context, err error) {
	r.unstored = cmp.Or(r.unstored, err)
	r.waits = r.archive.Check(ctx) != nil
}

// archivers is the number of runs that are archived concurrently.
const archivers = 4

// archiveRuns stores runs concurrently, if there is an archive, and returns in which state each is.
func (r *retentionRound) archiveRuns(ctx context.Context, runs []workqueue.RunID) (states []string, errs []error) {
	states, errs = make([]string, len(runs)), make([]error, len(runs))
	if r.archive == nil {
		return states, errs
	}
	var all sync.WaitGroup
	for i, run := range runs {
		all.Go(func() {
			if states[i], errs[i] = r.archive.Run(ctx, run); errs[i] != nil {
				errs[i] = fmt.Errorf("archive run %s: %w", run, errs[i])
			}
		})
	}
	all.Wait()
	if err := cmp.Or(errs...); err != nil {
		r.notStored(ctx, err)
	}
	return states, errs
}

// archiveAudit stores what is due of the audit log.
func (r *retentionRound) archiveAudit(ctx context.Context, k *retention.Retention, before time.Time) error {
	if r.archive == nil || k.Kind != retention.RetainAudit {
		return nil
	}
	after, last, err := r.store.AuditToArchive(ctx, before)
	if err != nil || last == 0 {
		return err
	}
	if err := r.archive.Audit(ctx, after, last); err != nil {
		r.notStored(ctx, err)
		return fmt.Errorf("archive the audit log: %w", err)
	}
	r.log.Info("archived rows of the audit log", zap.Int64("after", after), zap.Int64("last", last))
	return r.store.AuditArchived(ctx, r.lease, last)
}
