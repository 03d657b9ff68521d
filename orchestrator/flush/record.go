package flush

import (
	"context"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
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
		recorded, err = collectorstore.New(n.Store).RecordFlushes(ctx, ends)
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
	kernel.Signal(f.wakes) // its keys are free
}
