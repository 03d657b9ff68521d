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

const recordedOps = 8192

// record records flushes, many of one collector in a commit, until ended is closed.
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

// more adds the flushes that have ended, up to one of another collector, which is next.
func (f *Flusher) more(ends []collectorstore.FlushEnd) (all []collectorstore.FlushEnd, next *collectorstore.FlushEnd) {
	ops := ends[0].Operations()
	for len(ends) < collectorstore.NodeFlushes && ops < recordedOps {
		select {
		case e, open := <-f.ended:
			switch {
			case !open:
				return ends, nil // the next receive finds it closed
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

// write records flushes. It retries until the outcome is known or the claims expire: only then may operations be
// resent.
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
			n.Log.Warn("a flush returned too late; it changed nothing", zap.String("collector", name),
				zap.Stringer("flush", ends[i].Flush.ID))
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
	core.Signal(f.wakes) // the keys are free
}

// AddOps adds operations to a collector and schedules their flush. See [collectorstore.Store.AddOps].
func (f *Flusher) AddOps(ctx context.Context, name string, version int, batches [][]collectorstore.Op) (
	[]collectorstore.AddedOps, error,
) {
	added, next, err := collectorstore.New(f.node.Store).AddOps(ctx, name, version, batches)
	if err == nil {
		f.wakeIn(next)
	}
	return added, err
}

// ApplyCollector creates or changes a collector. See [collectorstore.Store.ApplyCollector].
func (f *Flusher) ApplyCollector(ctx context.Context, c collectorstore.Text, actor string) (
	workqueue.AppliedDocument, error,
) {
	out, err := collectorstore.New(f.node.Store).ApplyCollector(ctx, c, actor)
	return out, f.flushAfter(err)
}

// SetCollector pauses, resumes or deletes a collector. See [collectorstore.Store.SetCollector].
func (f *Flusher) SetCollector(
	ctx context.Context, name, state string, force bool, actor string,
) (workqueue.ControlledDocument, error) {
	out, err := collectorstore.New(f.node.Store).SetCollector(ctx, name, state, force, actor)
	return out, f.flushAfter(err)
}

// DrainCollector flushes all waiting operations. See [collectorstore.Store.DrainCollector].
func (f *Flusher) DrainCollector(ctx context.Context, name, actor string) (collectorstore.Drained, error) {
	out, err := collectorstore.New(f.node.Store).DrainCollector(ctx, name, actor)
	return out, f.flushAfter(err)
}

// RequeueOps retries operations. See [collectorstore.Store.RequeueOps].
func (f *Flusher) RequeueOps(
	ctx context.Context, name string, sel collectorstore.OpsSelection, actor string,
) (int64, error) {
	ops, err := collectorstore.New(f.node.Store).RequeueOps(ctx, name, sel, actor)
	return ops, f.flushAfter(err)
}

// flushAfter makes all nodes poll for keys, unless err is set.
func (f *Flusher) flushAfter(err error) error {
	if err != nil {
		return err
	}
	f.Wake()
	f.node.Notify(WakeFlush)
	return nil
}

// collectorsPause is the time between two rounds of Tend.
const collectorsPause = time.Second

// Tend is the leader task for collectors.
func (f *Flusher) Tend(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	for {
		swept, err := collectorstore.New(f.node.Store).SweepCollectors(ctx, lease)
		if swept.Released > 0 {
			f.node.Stats.Released.Add(int64(swept.Released))
			f.node.Log.Info("freed keys of abandoned flushes", zap.Int("keys", swept.Released))
			_ = f.flushAfter(nil)
		}
		if err != nil || !swept.More || ctx.Err() != nil {
			return f.node.Slower(collectorsPause), err
		}
	}
}

// hold is how long a flight is known to own its keys. A node may stall between its claim and its requests, or
// PostgreSQL may be slow to read the operations; meanwhile the session or the claim expires, and another node flushes
// the keys. So requests long after the claim are sent only after the claim was renewed.
type hold struct {
	trust time.Duration // for how long after a check no other node can own the keys

	mu     sync.Mutex
	last   time.Time // when the last successful check began
	kept   []uuid.UUID
	all    bool      // no check yet: all keys of the claim
	failed time.Time // when the last failed check ended
	err    error     // of that check
}

// newHold returns the hold of a claim begun at a time. After a claim the session lives on for most of its TTL, and
// keys are kept for at least DefaultClaimTTL.
func newHold(begun time.Time, session time.Duration) *hold {
	return &hold{trust: min(session, dispatch.DefaultClaimTTL) / 2, last: begun, all: true}
}

// has reports whether a flush still owns its key. The error is that of the check.
func (h *hold) has(ctx context.Context, keys keyStore, w *flight, id uuid.UUID) (bool, error) {
	came := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed.After(came) {
		return false, h.err // PostgreSQL is slow: do not query it once per flush of a claim
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
