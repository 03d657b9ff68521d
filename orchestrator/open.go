package orchestrator

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/start"
)

// OpenRun makes a run that takes items until it is sealed. See [start.Store.OpenRun].
func (n *Node) OpenRun(ctx context.Context, req start.OpenRequest) (start.Opened, error) {
	opened, err := start.New(n.store).OpenRun(ctx, req)
	if err == nil {
		n.spread()
	}
	return opened, err
}

// Add appends items to an open run. See [start.Store.Add].
func (n *Node) Add(ctx context.Context, req start.AddRequest) (start.Added, error) {
	if read := req.Items; read != nil {
		req.Items = func() (func(*start.LoadItem) error, error) {
			next, err := read()
			return counted(n.cfg.Meter, next), err
		}
	}
	added, err := start.New(n.store).Add(ctx, req)
	if err == nil && !added.Existing {
		n.spread() // blocks may have become full
	}
	return added, err
}

// SealRun ends the adding of items to an open run. See [start.Store.SealRun].
func (n *Node) SealRun(ctx context.Context, req start.SealRequest) (start.Sealed, error) {
	sealed, err := start.New(n.store).SealRun(ctx, req)
	if err == nil {
		n.announce(sealed.Completions, time.Time{})
		n.recheck(ctx, []workqueue.RunID{req.Run})
		n.spread()
	}
	return sealed, err
}

// sweepUnsealed reports open runs that were not sealed in time, and seals or cancels those that are to end so. Leader
// work. What fails is tried again with the next sweep.
func (n *Node) sweepUnsealed(ctx context.Context, lease workqueue.Lease) error {
	due, err := start.New(n.store).ReportOverdue(ctx, lease)
	if err != nil {
		return err
	}
	for i := range due {
		if o := &due[i]; o.Reported {
			n.log.Warn("an open run was not sealed in time", zap.Stringer("run", o.Run), zap.Time("seal_by", o.SealBy),
				zap.Int64("items", o.Items), zap.String("on_overdue", string(o.OnOverdue)))
			n.spread()
		}
		if err := n.endUnsealed(ctx, &due[i]); err != nil {
			n.log.Warn("end a run that was not sealed in time; trying again", zap.Stringer("run", due[i].Run),
				zap.Error(err))
		}
	}
	return nil
}

func (n *Node) endUnsealed(ctx context.Context, o *start.OverdueRun) (err error) {
	reason := "it was not sealed in time"
	if o.Abandoned {
		reason += fmt.Sprintf(", and for %d days nobody did anything with it, nor was an item of it worked on", start.AbandonedAfter/(24*time.Hour))
	}
	switch o.OnOverdue {
	case start.OverdueSeal:
		_, err = n.SealRun(ctx, start.SealRequest{Run: o.Run, Actor: workqueue.Engine, Reason: reason})
	case start.OverdueCancel:
		_, err = n.Cancel(ctx, control.Control{Run: o.Run, Actor: workqueue.Engine, Reason: reason})
	}
	return err
}
