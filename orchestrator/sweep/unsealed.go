package sweep

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/start"
)

// sweepUnsealed reports open runs that were not sealed in time, and seals or cancels those that are to end so. Leader
// work. What fails is tried again with the next sweep.
func (w *Sweeper) sweepUnsealed(ctx context.Context, lease workqueue.Lease) error {
	due, err := start.New(w.node.Store).ReportOverdue(ctx, lease)
	if err != nil {
		return err
	}
	for i := range due {
		if o := &due[i]; o.Reported {
			w.node.Log.Warn("an open run was not sealed in time", zap.Stringer("run", o.Run), zap.Time("seal_by", o.SealBy),
				zap.Int64("items", o.Items), zap.String("on_overdue", string(o.OnOverdue)))
			w.node.Spread()
		}
		if err := w.endUnsealed(ctx, &due[i]); err != nil {
			w.node.Log.Warn("end a run that was not sealed in time; trying again", zap.Stringer("run", due[i].Run),
				zap.Error(err))
		}
	}
	return nil
}

func (w *Sweeper) endUnsealed(ctx context.Context, o *start.OverdueRun) (err error) {
	reason := "it was not sealed in time"
	if o.Abandoned {
		reason += fmt.Sprintf(", and for %d days nobody did anything with it, nor was an item of it worked on",
			start.AbandonedAfter/(24*time.Hour))
	}
	switch o.OnOverdue {
	case start.OverdueSeal:
		_, err = w.runs.SealRun(ctx, start.SealRequest{Run: o.Run, Actor: workqueue.Engine, Reason: reason})
	case start.OverdueCancel:
		_, err = w.runs.Cancel(ctx, control.Control{Run: o.Run, Actor: workqueue.Engine, Reason: reason})
	}
	return err
}
