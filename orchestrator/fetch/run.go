package fetch

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
)

// hangPatience is how long a call may take to come back after its context has ended. Then it is given up.
const hangPatience = time.Second

// callEnd is what a call came back with.
type callEnd struct {
	slots []fetch.Slot
	err   error
}

// run calls a fetcher for a chunk, and records what comes of it.
func (f *Worker) run(ctx context.Context, job *fetchJob, call fetchCall, req *fetch.Request) {
	c := newCollector(f, job)
	ctx = f.traceFetching(ctx, c)
	timed, stop := c.limit(ctx, job.Work.Timeout)
	defer stop()
	f.node.Faults.Hit(fault.FetchBefore)
	f.node.Stats.Fetches.Add(1)
	f.cfg.Meter.Sent(job.Endpoint, job.Attempt)
	begun := time.Now()
	back := make(chan callEnd, 1)
	go func() {
		slots, err := call(timed, req, c)
		back <- callEnd{slots, err}
	}()
	end, came := waitFor(timed, back)
	took := time.Since(begun)
	f.ended(job.pool, took)
	if ctx.Err() != nil {
		c.traced(context.Cause(ctx))
		if !came {
			f.leak(c, back)
		}
		job.left()
		return // the slice is not ours any more, or is handed back
	}
	f.node.Faults.Hit(fault.FetchDone)
	var failure *workqueue.SlotError
	switch {
	case !came:
		f.leak(c, back)
		failure = c.giveUp()
	case timed.Err() != nil && (end.err == nil || kernel.IsEnd(end.err)):
		failure = c.late()
	case end.err != nil:
		failure = kernel.SlotError(fetch.ErrorOf(end.err, true))
	}
	for i := range end.slots {
		c.Take(end.slots[i])
	}
	c.finish(ctx, failure, took)
}

// waitFor waits for a call, and a little beyond the end of its context.
func waitFor(ctx context.Context, back <-chan callEnd) (end callEnd, came bool) {
	select {
	case end = <-back:
		return end, true
	case <-ctx.Done():
	}
	timer := time.NewTimer(hangPatience)
	defer timer.Stop()
	select {
	case end = <-back:
		return end, true
	case <-timer.C:
		return callEnd{}, false
	}
}

// leak keeps count of a call that was given up, until it comes back after all. What it brings then is dropped.
func (f *Worker) leak(c *collector, back <-chan callEnd) {
	c.shut()
	log := f.node.Log.With(zap.String("step", c.job.Work.Name), zap.String("of", c.job.Endpoint),
		zap.Stringer("run", c.job.Run), zap.Stringer("slice", c.job.ID))
	n := f.hang(c.job.pool, 1)
	log.Error("a call does not come back although its context has ended; it is given up, and goes on in the background",
		zap.Int("hung", n), zap.Int("at_most", maxHung), zap.Int("ordinal", c.at()))
	go func() {
		<-back
		f.hang(c.job.pool, -1)
		log.Warn("a call that was given up has come back; what it brought is dropped")
		f.node.Wake()
	}()
}
