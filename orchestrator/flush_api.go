package orchestrator

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// AddOps adds operations to a collector and has them flushed in time. See [collector.Store.AddOps].
func (n *Node) AddOps(ctx context.Context, name string, version int, batches [][]collectorstore.Op) (
	[]collectorstore.AddedOps, error,
) {
	added, next, err := collectorstore.New(n.store).AddOps(ctx, name, version, batches)
	if err == nil {
		n.flushing.wakeIn(next)
	}
	return added, err
}

// ApplyCollector puts a collector on record, or changes it. See [collector.Store.ApplyCollector].
func (n *Node) ApplyCollector(ctx context.Context, c collectorstore.Text, actor string) (
	collectorstore.AppliedCollector, error,
) {
	out, err := collectorstore.New(n.store).ApplyCollector(ctx, c, actor)
	return out, n.flushAfter(err)
}

// ResumeCollector takes the pause of a collector back. See [collector.Store.ResumeCollector].
func (n *Node) ResumeCollector(ctx context.Context, name, actor string) (changed bool, err error) {
	changed, err = collectorstore.New(n.store).ResumeCollector(ctx, name, actor)
	return changed, n.flushAfter(err)
}

// DrainCollector has everything flushed that waits. See [collector.Store.DrainCollector].
func (n *Node) DrainCollector(ctx context.Context, name, actor string) (collectorstore.Drained, error) {
	out, err := collectorstore.New(n.store).DrainCollector(ctx, name, actor)
	return out, n.flushAfter(err)
}

// RequeueOps has operations tried again. See [collector.Store.RequeueOps].
func (n *Node) RequeueOps(
	ctx context.Context, name string, sel collectorstore.OpsSelection, actor string,
) (int64, error) {
	ops, err := collectorstore.New(n.store).RequeueOps(ctx, name, sel, actor)
	return ops, n.flushAfter(err)
}

// flushAfter has all nodes look for keys to flush, unless what was to bring some has failed.
func (n *Node) flushAfter(err error) error {
	if err != nil {
		return err
	}
	n.flushing.wake()
	if err := n.nc.Publish(wakeSubject, []byte(wakeFlush)); err != nil {
		n.log.Debug("wake the flushers of other nodes", zap.Error(err))
	}
	return nil
}

// dutyCollectors frees keys of nodes that are gone, and clears away what collectors need no more.
const dutyCollectors = "collectors"

// collectorsPause is the time between two rounds of dutyCollectors.
const collectorsPause = time.Second

func (n *Node) tendingCollectors(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	for {
		swept, err := collectorstore.New(n.store).SweepCollectors(ctx, lease)
		if swept.Released > 0 {
			n.stats.released.Add(int64(swept.Released))
			n.log.Info("freed keys of flushes that were given up", zap.Int("keys", swept.Released))
			_ = n.flushAfter(nil)
		}
		if err != nil || !swept.More || ctx.Err() != nil {
			return collectorsPause, err
		}
	}
}
