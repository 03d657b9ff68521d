package core

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Recording is an answer to be recorded.
type Recording struct {
	settle.Answer
	Run   uuid.UUID  // according to the answer
	Trace wire.Trace // of the answer; zero: none
}

// Record commits answers. apart means that only one of several may be at fault: the caller records one at a time.
func (k *Core) Record(ctx context.Context, batch []Recording) (out settle.Recorded, apart bool, err error) {
	k.Faults.Hit(fault.RecordBefore)
	answers := make([]settle.Answer, len(batch))
	ends := make([]func(TraceOutcome), len(batch))
	for i := range batch {
		a := &batch[i]
		answers[i], ends[i] = a.Answer, func(TraceOutcome) {}
		if k.Tracer != nil && !a.Trace.IsZero() {
			ends[i] = k.Tracer.Recording(ctx, a.Trace, TracedReply{Run: a.Run, Slice: uuid.UUID(a.Slice),
				Endpoint: a.Endpoint, Service: a.Service, Slots: len(a.Slots), Final: a.Answered >= 0})
		}
	}
	begun := time.Now()
	out, err = k.Settling.Record(ctx, answers)
	if err != nil {
		for _, end := range ends {
			end(TraceOutcome{Err: err})
		}
		_, answered := errors.AsType[*pgconn.PgError](err)
		return out, len(batch) > 1 && (answered || workqueue.Refused(err)), err
	}
	k.Meter.Took(TimingRecord, time.Since(begun))
	k.Faults.Hit(fault.RecordCommitted)
	k.Stats.Commits.Add(1)
	for i, v := range out.Verdicts {
		ends[i](TraceOutcome{Taken: v.Taken, Stale: v.Stale})
		k.Stats.Slots.Add(int64(v.Taken))
		k.Stats.Duplicates.Add(int64(v.Duplicates))
		if v.Stale {
			k.Stats.Stale.Add(1)
			k.Log.Debug("an answer for an expired slice", zap.Stringer("slice", batch[i].Slice))
		}
	}
	return out, false, nil
}
