package orchestrator

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// AddOps adds operations to a collector and has them flushed in time. See [collector.Store.AddOps].
func (f *flushing) AddOps(ctx context.Context, name string, version int, batches [][]collectorstore.Op) (
	[]collectorstore.AddedOps, error,
) {
	added, next, err := collectorstore.New(f.node.store).AddOps(ctx, name, version, batches)
	if err == nil {
		f.wakeIn(next)
	}
	return added, err
}

// ApplyCollector puts a collector on record, or changes it. See [collector.Store.ApplyCollector].
func (f *flushing) ApplyCollector(ctx context.Context, c collectorstore.Text, actor string) (
	collectorstore.AppliedCollector, error,
) {
	out, err := collectorstore.New(f.node.store).ApplyCollector(ctx, c, actor)
	return out, f.flushAfter(err)
}

// ResumeCollector takes the pause of a collector back. See [collector.Store.ResumeCollector].
func (f *flushing) ResumeCollector(ctx context.Context, name, actor string) (changed bool, err error) {
	changed, err = collectorstore.New(f.node.store).ResumeCollector(ctx, name, actor)
	return changed, f.flushAfter(err)
}

// DrainCollector has everything flushed that waits. See [collector.Store.DrainCollector].
func (f *flushing) DrainCollector(ctx context.Context, name, actor string) (collectorstore.Drained, error) {
	out, err := collectorstore.New(f.node.store).DrainCollector(ctx, name, actor)
	return out, f.flushAfter(err)
}

// RequeueOps has operations tried again. See [collector.Store.RequeueOps].
func (f *flushing) RequeueOps(
	ctx context.Context, name string, sel collectorstore.OpsSelection, actor string,
) (int64, error) {
	ops, err := collectorstore.New(f.node.store).RequeueOps(ctx, name, sel, actor)
	return ops, f.flushAfter(err)
}

// flushAfter has all nodes look for keys to flush, unless what was to bring some has failed.
func (f *flushing) flushAfter(err error) error {
	if err != nil {
		return err
	}
	f.wake()
	if err := f.node.nc.Publish(wakeSubject, []byte(wakeFlush)); err != nil {
		f.node.log.Debug("wake the flushers of other nodes", zap.Error(err))
	}
	return nil
}

// dutyCollectors frees keys of nodes that are gone, and clears away what collectors need no more.
const dutyCollectors = "collectors"

// collectorsPause is the time between two rounds of dutyCollectors.
const collectorsPause = time.Second

// tend is that duty.
func (f *flushing) tend(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	for {
		swept, err := collectorstore.New(f.node.store).SweepCollectors(ctx, lease)
		if swept.Released > 0 {
			f.node.stats.released.Add(int64(swept.Released))
			f.node.log.Info("freed keys of flushes that were given up", zap.Int("keys", swept.Released))
			_ = f.flushAfter(nil)
		}
		if err != nil || !swept.More || ctx.Err() != nil {
			return collectorsPause, err
		}
	}
}
