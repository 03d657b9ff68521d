package orchestrator

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	retentionstore "github.com/tranchehq/tranche/workqueue/retention"
)

const (
	// retentionEvery is the time between two rounds.
	retentionEvery = 10 * time.Minute
	// retentionPause is the least rest between two pieces; retentionMost is how long a piece should take. It also rests
	// for as long as the piece took, so it uses at most half a connection.
	retentionPause = 10 * time.Millisecond
	retentionMost  = 100 * time.Millisecond
	// A locked partition is retried this often, for 10 s in all.
	emptyTries     = 40
	emptyPause     = 250 * time.Millisecond
	retentionBatch = 100
	retentionTold  = 5
)

// Sizes of a piece in rows or items. Only timeouts reduce them below leastSpan: rows may be of any size.
const (
	leastSpan = 100
	firstSpan = 2000
	mostSpan  = 20_000
)

// retaining is the leader task that deletes what is past its limits, first what an earlier leader began with.
func retaining(k *core.Core, archive Archive) func(context.Context, workqueue.Lease) (time.Duration, error) {
	return func(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
		r := &retentionRound{log: k.Log, store: retentionstore.New(k.Store), archive: archive, lease: lease, span: firstSpan}
		return retentionEvery, r.round(ctx)
	}
}

// sealEvery is the time between two polls for new rows of the audit log.
const sealEvery = time.Second

// sealing is the leader task that chains the rows of the audit log.
func sealing(k *core.Core) func(context.Context, workqueue.Lease) (time.Duration, error) {
	return func(ctx context.Context, _ workqueue.Lease) (time.Duration, error) {
		return sealEvery, retentionstore.New(k.Store).SealAudit(ctx)
	}
}

// retentionStore is the part of [retentionstore.Store] used here.
type retentionStore interface {
	Retention(ctx context.Context) ([]retentionstore.Retention, error)
	RetentionCutoff(ctx context.Context, of *retentionstore.Retention) (*time.Time, error)
	RunsPastLimits(ctx context.Context, before time.Time, limit int, without []workqueue.RunID) ([]workqueue.RunID, error)
	DeleteRun(ctx context.Context, lease workqueue.Lease, run workqueue.RunID, before time.Time,
		why, archived string) (bool, error)
	GoingRuns(ctx context.Context, limit int, without ...workqueue.RunID) ([]inspect.GoneRun, error)
	Empty(ctx context.Context, lease workqueue.Lease, run workqueue.RunID) (retentionstore.Emptying, error)
	DeletePiece(ctx context.Context, lease workqueue.Lease, run workqueue.RunID, span int64) (int64, bool, error)
	DeleteOld(ctx context.Context, lease workqueue.Lease, kind retentionstore.RetentionKind, before time.Time,
		limit int) (int64, error)
	NoteDeleted(ctx context.Context, lease workqueue.Lease, kind retentionstore.RetentionKind, n int64) error
	MeasureRuns(ctx context.Context, lease workqueue.Lease, limit int) ([]workqueue.RunID, error)
	GuessRun(ctx context.Context, lease workqueue.Lease, run workqueue.RunID) (bytes int64, err error)
	DropSizes(ctx context.Context, lease workqueue.Lease) error
	ForgetGone(ctx context.Context, lease workqueue.Lease) error
	NoteArchive(ctx context.Context, lease workqueue.Lease, target string, reason *string) (bool, error)
	AuditToArchive(ctx context.Context, before time.Time) (after, last int64, err error)
	AuditArchived(ctx context.Context, lease workqueue.Lease, seal int64) error
}

type retentionRound struct {
	log   *zap.Logger
	store retentionStore
	lease workqueue.Lease
	span  int64
	stuck int // runs that could not be deleted

	archive  Archive // nil: none
	unstored error   // the first reason why something is not in the archive
	waits    bool    // runs and the audit log wait for the archive
}

// round continues after errors: one run, or one kind, never holds up the rest.
func (r *retentionRound) round(ctx context.Context) error {
	failed := r.finishRuns(ctx)
	if over(ctx, failed) {
		return failed
	}
	if err := r.openArchive(ctx); err != nil {
		return errors.Join(failed, err)
	}
	failed = errors.Join(failed, r.unstored)
	all, err := r.store.Retention(ctx)
	if err != nil {
		return errors.Join(failed, err)
	}
	for i := range all {
		err := r.kind(ctx, &all[i])
		if over(ctx, err) {
			return err
		}
		failed = errors.Join(failed, err)
	}
	_, err = r.noteArchive(ctx, true)
	return errors.Join(failed, err, r.store.DropSizes(ctx, r.lease), r.store.ForgetGone(ctx, r.lease))
}

// over reports whether err ends the round, since the node no longer leads, or stops.
func over(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, workqueue.ErrNotLeader))
}

// kind deletes what is past the limits of one kind. A limit by size needs measured runs. Other sizes are only shown,
// so those of the remaining runs are measured afterwards.
func (r *retentionRound) kind(ctx context.Context, k *retentionstore.Retention) error {
	switch {
	case k.Kind == retentionstore.RetainRuns && k.None():
		return r.measure(ctx, k)
	case k.None():
		return nil
	case k.Kind != retentionstore.RetainRuns:
		return r.past(ctx, k)
	}
	first, then := r.past, r.measure
	if k.Bytes != nil {
		first, then = then, first
	}
	failed := first(ctx, k)
	if over(ctx, failed) {
		return failed
	}
	return errors.Join(failed, then(ctx, k))
}

func (r *retentionRound) past(ctx context.Context, k *retentionstore.Retention) error {
	if r.waits && (k.Kind == retentionstore.RetainRuns || k.Kind == retentionstore.RetainAudit) {
		return nil
	}
	before, err := r.store.RetentionCutoff(ctx, k)
	if err != nil || before == nil {
		return err
	}
	if err := r.archiveAudit(ctx, k, *before); err != nil {
		return err
	}
	var n int64
	if k.Kind == retentionstore.RetainRuns {
		why := k.String()
		if r.archive != nil {
			why += "; archived in " + r.archive.Target()
		}
		n, err = r.runs(ctx, *before, why)
	} else {
		n, err = r.old(ctx, k.Kind, *before)
	}
	if n > 0 {
		r.log.Info("deleted what was past its limits", zap.String("kind", string(k.Kind)), zap.Int64("deleted", n),
			zap.Time("before", *before))
		err = errors.Join(err, r.store.NoteDeleted(ctx, r.lease, k.Kind, n))
	}
	return err
}

// measure measures finished runs. A batch shrinks when it takes too long, and grows again after. A single run that
// takes too long gets a guess. It rests for as long as the last batch took.
func (r *retentionRound) measure(ctx context.Context, _ *retentionstore.Retention) error {
	batch := retentionBatch
	for {
		began := time.Now()
		runs, err := r.store.MeasureRuns(ctx, r.lease, batch)
		took := time.Since(began)
		switch {
		case err == nil && len(runs) < batch:
			return nil
		case err == nil:
			batch = min(batch*2, retentionBatch)
		case ctx.Err() != nil || !retentionstore.TookTooLong(err) || len(runs) == 0:
			return err
		case len(runs) > 1:
			batch = max(len(runs)/4, 1)
		default:
			if err := r.guess(ctx, runs[0], err); err != nil {
				return err
			}
			batch = 2 // as after a success with one
		}
		if backoff.Sleep(ctx, max(took, retentionPause)) != nil {
			return context.Cause(ctx)
		}
	}
}

func (r *retentionRound) guess(ctx context.Context, run workqueue.RunID, why error) error {
	bytes, err := r.store.GuessRun(ctx, r.lease, run)
	if err == nil && bytes > 0 {
		r.log.Warn("a finished run could not be measured before the deadline; its size is estimated, without its values",
			zap.Stringer("run", run), zap.Int64("bytes", bytes), zap.Error(why))
	}
	return err
}

// runs deletes runs that ended before a time. It marks all due ones first, so that partitions without others are
// emptied.
func (r *retentionRound) runs(ctx context.Context, before time.Time, why string) (n int64, failed error) {
	var left []workqueue.RunID // in use, or could not be deleted
	for {
		due, err := r.store.RunsPastLimits(ctx, before, retentionBatch, left)
		if err != nil || len(due) == 0 {
			return n, errors.Join(failed, err)
		}
		for some := range slices.Chunk(due, archivers) {
			states, errs := r.archiveRuns(ctx, some)
			for i, run := range some {
				deleted, err := false, errs[i]
				if err == nil {
					deleted, err = r.store.DeleteRun(ctx, r.lease, run, before, why, states[i])
				}
				if over(ctx, err) {
					return n, err
				}
				if err != nil {
					failed = r.withStuck(failed, err)
				}
				if !deleted {
					left = append(left, run)
					continue
				}
				n++
			}
			if r.waits {
				break
			}
		}
		if err := r.finishRuns(ctx); over(ctx, err) {
			return n, err
		} else if err != nil {
			failed = errors.Join(failed, err) // the next round retries it
		}
		if r.waits {
			return n, failed
		}
	}
}

func (r *retentionRound) finishRuns(ctx context.Context) (failed error) {
	var left []workqueue.RunID // for the next round
	for {
		going, err := r.store.GoingRuns(ctx, retentionBatch, left...)
		if err != nil || len(going) == 0 {
			return errors.Join(failed, err)
		}
		for i := range going {
			err := r.finishRun(ctx, going[i].Run)
			if over(ctx, err) {
				return err
			}
			if err != nil {
				left, failed = append(left, going[i].Run), r.withStuck(failed, err)
			}
		}
	}
}

// withStuck joins an error of a run. One cause may affect thousands, so it keeps only a few.
func (r *retentionRound) withStuck(failed, err error) error {
	if r.stuck++; r.stuck > retentionTold {
		return failed
	}
	return errors.Join(failed, err)
}

func (r *retentionRound) finishRun(ctx context.Context, run workqueue.RunID) error {
	if err := r.empty(ctx, run); err != nil {
		return err
	}
	for {
		var gone bool
		err := r.piece(ctx, func(span int64) (err error) {
			_, gone, err = r.store.DeletePiece(ctx, r.lease, run, span)
			return err
		})
		if err != nil || gone {
			return err
		}
	}
}

// empty drops what it can of a run in one step, unless a long transaction, such as a backup, reads the tables.
func (r *retentionRound) empty(ctx context.Context, run workqueue.RunID) error {
	for range emptyTries {
		out, err := r.store.Empty(ctx, r.lease, run)
		if err != nil || !out.Busy {
			return err
		}
		if backoff.Sleep(ctx, emptyPause) != nil {
			return context.Cause(ctx)
		}
	}
	r.log.Info("the partitions of a run that is being deleted are in use; its rows are deleted instead",
		zap.Stringer("run", run))
	return nil
}

func (r *retentionRound) old(
	ctx context.Context, kind retentionstore.RetentionKind, before time.Time,
) (total int64, err error) {
	for {
		var n, most int64
		err := r.piece(ctx, func(span int64) (err error) {
			most = span
			n, err = r.store.DeleteOld(ctx, r.lease, kind, before, int(span))
			return err
		})
		total += n
		if err != nil || n < most {
			return total, err
		}
	}
}

// piece does one piece, rests, and adapts the next size. One that timed out had no effect and is retried smaller.
func (r *retentionRound) piece(ctx context.Context, do func(span int64) error) error {
	for {
		began := time.Now()
		err := do(r.span)
		took := time.Since(began)
		switch {
		case err != nil && (ctx.Err() != nil || !retentionstore.TookTooLong(err) || r.span == 1):
			return err
		case err != nil:
			r.log.Warn("a part of a deletion timed out; trying a smaller one", zap.Int64("span", r.span),
				zap.Error(err))
			r.span = max(r.span/4, 1)
		default:
			r.span = nextSpan(r.span, took)
		}
		if backoff.Sleep(ctx, max(took, retentionPause)) != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			return nil
		}
	}
}

// nextSpan returns the next size. Below leastSpan, it grows as soon as pieces do not take too long.
func nextSpan(span int64, took time.Duration) int64 {
	switch {
	case took > retentionMost:
		return min(span, max(span/2, leastSpan))
	case took < retentionMost/4 || took < retentionMost && span < leastSpan:
		return min(span*2, mostSpan)
	}
	return span
}
