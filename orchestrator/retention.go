package orchestrator

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
)

// DutyRetention is the duty that deletes what is past its limits; see [Node.WakeDuty].
const DutyRetention = "retention"

const (
	// retentionEvery is the time between two looks for what is past its limits.
	retentionEvery = 10 * time.Minute
	// retentionPause is the least rest between two pieces, and retentionMost how long a piece should take at the most.
	// Beside that it rests for as long as the piece took, so that it takes half a connection at the most.
	retentionPause = 10 * time.Millisecond
	retentionMost  = 100 * time.Millisecond
	// retentionBatch bounds the runs that are looked for, or measured, at once.
	retentionBatch = 100
)

// Pieces are of so many rows, or items, by how long they take.
const (
	leastSpan = 100
	firstSpan = 2000
	mostSpan  = 20_000
)

// retaining is the duty that deletes what is past its limits. Runs come first: what is left of one that a leader before
// had begun with, then those that are past their limits now.
func (n *Node) retaining(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
	r := &retention{node: n, lease: lease, span: firstSpan}
	return retentionEvery, r.round(ctx)
}

// retention is one round.
type retention struct {
	node  *Node
	lease workqueue.Lease
	span  int64
}

func (r *retention) round(ctx context.Context) error {
	if err := r.finishRuns(ctx); err != nil {
		return err
	}
	all, err := r.node.store.Retention(ctx)
	if err != nil {
		return err
	}
	var failed error
	for i := range all {
		if err := r.kind(ctx, &all[i]); err != nil {
			if ctx.Err() != nil || errors.Is(err, workqueue.ErrNotLeader) {
				return err
			}
			failed = errors.Join(failed, err) // the others can do without it
		}
	}
	return errors.Join(failed, r.node.store.ForgetGone(ctx, r.lease))
}

// kind deletes what is past the limits of one kind.
func (r *retention) kind(ctx context.Context, k *workqueue.Retention) error {
	if k.None() {
		return nil
	}
	if k.Kind == workqueue.RetainRuns { // also for people, who want to know what would go
		if err := r.measure(ctx); err != nil {
			return err
		}
	}
	before, err := r.node.store.RetentionCutoff(ctx, k)
	if err != nil || before == nil {
		return err
	}
	var n int64
	if k.Kind == workqueue.RetainRuns {
		n, err = r.runs(ctx, *before, k.String())
	} else {
		n, err = r.old(ctx, k.Kind, *before)
	}
	if n > 0 {
		r.node.log.Info("deleted what was past its limits", zap.String("kind", string(k.Kind)), zap.Int64("deleted", n),
			zap.Time("before", *before))
		err = errors.Join(err, r.node.store.NoteDeleted(ctx, r.lease, k.Kind, n))
	}
	return err
}

func (r *retention) measure(ctx context.Context) error {
	for {
		n, err := r.node.store.MeasureRuns(ctx, r.lease, retentionBatch)
		if err != nil || n < retentionBatch {
			return err
		}
	}
}

// runs deletes runs that ended before a time, one after the other.
func (r *retention) runs(ctx context.Context, before time.Time, why string) (n int64, err error) {
	var left []workqueue.RunID // somebody was at work on them
	for {
		due, err := r.node.store.RunsPastLimits(ctx, before, retentionBatch, left)
		if err != nil || len(due) == 0 {
			return n, err
		}
		for _, run := range due {
			deleted, err := r.node.store.DeleteRun(ctx, r.lease, run, before, why)
			if err != nil {
				return n, err
			}
			if !deleted {
				left = append(left, run)
				continue
			}
			n++
			if err := r.finishRuns(ctx); err != nil {
				return n, err
			}
		}
	}
}

// finishRuns deletes all there is of the runs that are being deleted.
func (r *retention) finishRuns(ctx context.Context) error {
	for {
		going, err := r.node.store.GoingRuns(ctx, retentionBatch)
		if err != nil || len(going) == 0 {
			return err
		}
		for i := range going {
			if err := r.finishRun(ctx, going[i].Run); err != nil {
				return err
			}
		}
	}
}

func (r *retention) finishRun(ctx context.Context, run workqueue.RunID) error {
	for {
		var gone bool
		err := r.piece(ctx, func() (err error) {
			_, gone, err = r.node.store.DeletePiece(ctx, r.lease, run, r.span)
			return err
		})
		if err != nil || gone {
			return err
		}
	}
}

// old deletes things of a kind that ended before a time.
func (r *retention) old(ctx context.Context, kind workqueue.RetentionKind, before time.Time) (total int64, err error) {
	for {
		span, n := r.span, int64(0)
		err := r.piece(ctx, func() (err error) {
			n, err = r.node.store.DeleteOld(ctx, r.lease, kind, before, int(span))
			return err
		})
		total += n
		if err != nil || n < span {
			return total, err
		}
	}
}

// piece does one piece, rests, and finds out how large the next one may be.
func (r *retention) piece(ctx context.Context, do func() error) error {
	began := time.Now()
	if err := do(); err != nil {
		return err
	}
	took := time.Since(began)
	switch {
	case took > retentionMost:
		r.span = max(r.span/2, leastSpan)
	case took < retentionMost/4:
		r.span = min(r.span*2, mostSpan)
	}
	if !sleep(ctx, max(took, retentionPause)) {
		return context.Cause(ctx)
	}
	return nil
}
