package flush

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// AddOps adds operations to a collector and has them flushed in time. See [collector.Store.AddOps].
func (f *Flusher) AddOps(ctx context.Context, name string, version int, batches [][]collectorstore.Op) (
	[]collectorstore.AddedOps, error,
) {
	added, next, err := collectorstore.New(f.node.Store).AddOps(ctx, name, version, batches)
	if err == nil {
		f.wakeIn(next)
	}
	return added, err
}

// ApplyCollector puts a collector on record, or changes it. See [collector.Store.ApplyCollector].
func (f *Flusher) ApplyCollector(ctx context.Context, c collectorstore.Text, actor string) (
	collectorstore.AppliedCollector, error,
) {
	out, err := collectorstore.New(f.node.Store).ApplyCollector(ctx, c, actor)
	return out, f.flushAfter(err)
}

// ResumeCollector takes the pause of a collector back. See [collector.Store.ResumeCollector].
func (f *Flusher) ResumeCollector(ctx context.Context, name, actor string) (changed bool, err error) {
	changed, err = collectorstore.New(f.node.Store).ResumeCollector(ctx, name, actor)
	return changed, f.flushAfter(err)
}

// DrainCollector has everything flushed that waits. See [collector.Store.DrainCollector].
func (f *Flusher) DrainCollector(ctx context.Context, name, actor string) (collectorstore.Drained, error) {
	out, err := collectorstore.New(f.node.Store).DrainCollector(ctx, name, actor)
	return out, f.flushAfter(err)
}

// RequeueOps has operations tried again. See [collector.Store.RequeueOps].
func (f *Flusher) RequeueOps(
	ctx context.Context, name string, sel collectorstore.OpsSelection, actor string,
) (int64, error) {
	ops, err := collectorstore.New(f.node.Store).RequeueOps(ctx, name, sel, actor)
	return ops, f.flushAfter(err)
}

// flushAfter has all nodes look for keys to flush, unless what was to bring some has failed.
func (f *Flusher) flushAfter(err error) error {
	if err != nil {
		return err
	}
	f.Wake()
	if err := f.node.NC.Publish(kernel.WakeSubject, []byte(WakeFlush)); err != nil {
		f.node.Log.Debug("wake the flushers of other nodes", zap.Error(err))
	}
	return nil
}

// collectorsPause is the time between two rounds of the duty for collectors.
const collectorsPause = time.Second

// Tend is that duty.
func (f *Flusher) Tend(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	for {
		swept, err := collectorstore.New(f.node.Store).SweepCollectors(ctx, lease)
		if swept.Released > 0 {
			f.node.Stats.Released.Add(int64(swept.Released))
			f.node.Log.Info("freed keys of flushes that were given up", zap.Int("keys", swept.Released))
			_ = f.flushAfter(nil)
		}
		if err != nil || !swept.More || ctx.Err() != nil {
			return collectorsPause, err
		}
	}
}
