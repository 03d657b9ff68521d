package flush

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// recordedOps bounds the operations of a commit that records flushes.
const recordedOps = 8192

// record writes what flushes came to, many of one collector in a commit, until no more come.
func (f *Flusher) record(ctx context.Context) {
	var next *collectorstore.FlushEnd
	for {
		if next == nil {
			e, open := <-f.ended
			if !open {
				return
			}
			next = &e
		}
		ends := []collectorstore.FlushEnd{*next}
		ends, next = f.more(ends)
		f.write(ctx, ends)
	}
}

// more adds what has ended by now, up to a flush of another collector, which it returns.
func (f *Flusher) more(ends []collectorstore.FlushEnd) (all []collectorstore.FlushEnd, next *collectorstore.FlushEnd) {
	ops := ends[0].Operations()
	for len(ends) < collectorstore.NodeFlushes && ops < recordedOps {
		select {
		case e, open := <-f.ended:
			switch {
			case !open:
				return ends, nil // the next look finds it closed
			case e.Flush.Collector != ends[0].Flush.Collector:
				return ends, &e
			}
			ends, ops = append(ends, e), ops+e.Operations()
		default:
			return ends, nil
		}
	}
	return ends, nil
}

// write records flushes, and tries again until it comes to know how that went or they are given up by everybody: only
// then is anything asked for again.
func (f *Flusher) write(ctx context.Context, ends []collectorstore.FlushEnd) {
	n, name := f.node, ends[0].Claim.Name
	timed, cancel := context.WithTimeout(ctx, dispatch.DefaultClaimTTL)
	defer cancel()
	var recorded []collectorstore.FlushRecorded
	err := n.Retry(timed, "record flushes of collector "+name, func(ctx context.Context) (err error) {
		recorded, err = f.keys.RecordFlushes(ctx, ends)
		return err
	})
	if err != nil {
		n.Log.Error("flushes are not recorded; their keys are flushed again", zap.Int("flushes", len(ends)), zap.Error(err))
		return
	}
	for i, r := range recorded {
		n.Stats.FlushedOps.Add(int64(r.Done))
		n.Stats.FailedOps.Add(int64(r.Failed))
		if r.Stale {
			n.Stats.StaleFlushes.Add(1)
			n.Log.Warn("a flush came back too late; it touched nothing", zap.String("collector", name),
				zap.String("key", ends[i].Flush.Key), zap.Stringer("flush", ends[i].Flush.ID))
		}
		endpoint := ends[i].Claim.Spec.Endpoint
		if r.Outage {
			f.watch.Add(settle.FollowUp{Endpoints: []string{endpoint}})
		}
		if r.Closed {
			n.Log.Warn("breaker", zap.String("endpoint", endpoint), zap.Bool("open", false),
				zap.String("reason", "a flush of collector "+name+" was answered"))
			n.WakeOthers()
		}
	}
	core.Signal(f.wakes) // its keys are free
}

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
	workqueue.AppliedDocument, error,
) {
	out, err := collectorstore.New(f.node.Store).ApplyCollector(ctx, c, actor)
	return out, f.flushAfter(err)
}

// SetCollector pauses a collector, resumes or deletes it. See [collector.Store.SetCollector].
func (f *Flusher) SetCollector(
	ctx context.Context, name, state string, force bool, actor string,
) (workqueue.ControlledDocument, error) {
	out, err := collectorstore.New(f.node.Store).SetCollector(ctx, name, state, force, actor)
	return out, f.flushAfter(err)
}

// DrainCollector has everything flushed that waits. See [collector.Store.DrainCollector].
func (f *Flusher) DrainCollector(ctx context.Context, name, actor string) (collectorstore.Drained, error) {
	out, err := collectorstore.New(f.node.Store).DrainCollector(ctx, name, actor)
	return out, f.flushAfter(err)
}

// RequeueOps has operations retried. See [collector.Store.RequeueOps].
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
	f.node.Notify(WakeFlush)
	return nil
}

// collectorsPause is the time between two rounds of the leader task for collectors.
const collectorsPause = time.Second

// Tend is that leader task.
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

// hold is until when it is known that the keys of a flight are its own. A node may are stalled between its claim and
// its requests, or PostgreSQL may take long to read the operations: meanwhile the session ends, or the time for which
// keys are kept, and someone else flushes them. What was claimed a while ago is therefore asked for only after another
// look, which keeps the keys as if they were claimed then.
type hold struct {
	trust time.Duration // for how long after a look no one else can have the keys

	mu     sync.Mutex
	last   time.Time // when the last look that had an answer was begun
	kept   []uuid.UUID
	all    bool      // nothing is known but the claim, which has all
	failed time.Time // when the last look ended that had none
	err    error     // of that
}

// newHold is that of a claim which was begun at a time. A session lives on for most of its time after a claim, and keys
// are kept for DefaultClaimTTL at least.
func newHold(begun time.Time, session time.Duration) *hold {
	return &hold{trust: min(session, dispatch.DefaultClaimTTL) / 2, last: begun, all: true}
}

// has reports whether a flush still has its key. The error is one of the look.
func (h *hold) has(ctx context.Context, keys keyStore, w *flight, id uuid.UUID) (bool, error) {
	came := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed.After(came) {
		return false, h.err // PostgreSQL is slow: the flushes of a claim do not ask it one at a time
	}
	if now := time.Now(); now.Sub(h.last) >= h.trust {
		timed, cancel := context.WithTimeout(ctx, h.trust)
		defer cancel()
		kept, err := keys.ProlongFlushes(timed, flushIDs(w), timeouts(w))
		if err != nil {
			h.failed, h.err = time.Now(), err
			return false, err
		}
		h.last, h.kept, h.all = now, kept, false
	}
	return h.all || slices.Contains(h.kept, id), nil
}

func flushIDs(w *flight) []uuid.UUID {
	ids := make([]uuid.UUID, len(w.claimed.Flushes))
	for i := range ids {
		ids[i] = w.claimed.Flushes[i].ID
	}
	return ids
}

func timeouts(w *flight) []time.Duration {
	return slices.Repeat([]time.Duration{time.Duration(w.claimed.Spec.Timeout)}, len(w.claimed.Flushes))
}
