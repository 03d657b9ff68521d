package orchestrator

import (
	"context"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
)

// recordedOps bounds the operations of a commit that records flushes.
const recordedOps = 8192

// record writes what flushes came to, many of one collector in a commit, until no more come.
func (f *flushing) record(ctx context.Context) {
	var next *flushEnded
	for {
		if next == nil {
			e, open := <-f.ended
			if !open {
				return
			}
			next = &e
		}
		first := next
		ends := []workqueue.FlushEnd{first.end}
		ends, next = f.more(ends)
		f.write(ctx, &first.flight.claimed, ends)
	}
}

// more adds what has ended by now, up to a flush of another collector, which it returns.
func (f *flushing) more(ends []workqueue.FlushEnd) (all []workqueue.FlushEnd, next *flushEnded) {
	ops := len(ends[0].Ops)
	for len(ends) < nodeFlushes && ops < recordedOps {
		select {
		case e, open := <-f.ended:
			switch {
			case !open:
				return ends, nil // the next look finds it closed
			case e.end.Flush.Collector != ends[0].Flush.Collector:
				return ends, &e
			}
			ends, ops = append(ends, e.end), ops+len(e.end.Ops)
		default:
			return ends, nil
		}
	}
	return ends, nil
}

// write records flushes, and tries again until it comes to know how that went or they are given up by everybody: only
// then is anything asked for again.
func (f *flushing) write(ctx context.Context, claimed *workqueue.ClaimedFlushes, ends []workqueue.FlushEnd) {
	n := f.node
	timed, cancel := context.WithTimeout(ctx, workqueue.DefaultClaimTTL)
	defer cancel()
	var recorded []workqueue.FlushRecorded
	err := n.retry(timed, "record flushes of collector "+claimed.Name, func(ctx context.Context) (err error) {
		recorded, err = n.store.RecordFlushes(ctx, claimed, ends)
		return err
	})
	if err != nil {
		n.log.Error("flushes are not recorded; their keys are flushed again", zap.Int("flushes", len(ends)), zap.Error(err))
		return
	}
	for i, r := range recorded {
		n.stats.flushedOps.Add(int64(r.Done))
		n.stats.failedOps.Add(int64(r.Failed))
		if r.Stale {
			n.stats.staleFlushes.Add(1)
			n.log.Warn("a flush came back too late; it touched nothing", zap.String("collector", claimed.Name),
				zap.String("key", ends[i].Flush.Key), zap.Stringer("flush", ends[i].Flush.ID))
		}
	}
	signal(f.wakes) // its keys are free
}
