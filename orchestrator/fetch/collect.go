package fetch

import (
	"context"
	"fmt"
	"mime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// collectBytes is the size from which results are recorded while the rest of the chunk is processed.
	collectBytes = 1 << 20
	maxResult    = 64 << 20
	// slotOverhead is the approximate size of a slot without its data.
	slotOverhead = 100
)

// collector takes the slots of one chunk and hands them to the recorders: at the end, or earlier at collectBytes. It
// implements fetch.Sink, and is safe for concurrent use.
type collector struct {
	f       *Worker
	job     *fetchJob
	service string        // that answered
	worked  time.Duration // processing time reported by a service; 0: unknown
	// requests is the time taken by requests to a host or source.
	requests time.Duration
	trace    wire.Trace
	traced   func(error)
	panics   atomic.Int64

	ctx   context.Context //nolint:containedctx // of the job: Take has none
	room  sync.Mutex      // held while results wait to be handed over
	mu    sync.Mutex
	slots []settle.Slot
	size  int64
	asked bitfield.Set // items without a slot
	taken int          // number of slots
	item  int          // ordinal that the fetcher is processing; -1: unknown
	done  bool         // all further slots are dropped
	odd   int          // slots for unrequested items, or duplicates

	limited time.Duration // timeout of the call
	blocked time.Duration // part of the call's time spent waiting to hand over results
	waiting time.Time     // since when it waits for that
}

func newCollector(f *Worker, job *fetchJob) *collector {
	return &collector{f: f, job: job, service: f.node.Name, asked: job.Mask, item: -1, traced: func(error) {}}
}

func (c *collector) Begin(ordinal int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.item = ordinal
}

func (c *collector) at() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.item
}

func (c *collector) Take(slot fetch.Slot) {
	c.mu.Lock()
	c.add(slot)
	full := c.size >= collectBytes && !c.done
	c.mu.Unlock()
	if full {
		c.flush()
	}
}

// add keeps a requested slot, with mu held.
func (c *collector) add(slot fetch.Slot) {
	block, bit := workqueue.Ordinal(slot.Ordinal).Block()
	switch {
	case c.done:
		return
	case slot.Ordinal < 0 || block != c.job.Block || !c.asked.Has(bit):
		c.odd++
		return
	}
	c.asked.Remove(bit)
	c.taken++
	slot.ContentType = wire.ResultType(slot.ContentType)
	kept := settle.Slot{Ordinal: workqueue.Ordinal(slot.Ordinal), Result: slot.Data, ContentType: slot.ContentType}
	if slot.Err == nil {
		slot.Err = checkResult(slot)
	}
	if slot.Err != nil {
		kept = settle.Slot{Ordinal: kept.Ordinal, Err: core.SlotError(fetch.Clean(slot.Err))}
	}
	c.slots = append(c.slots, kept)
	c.size += int64(len(kept.Result) + slotOverhead)
}

// checkResult checks that a result can be stored and read again.
func checkResult(slot fetch.Slot) *wire.SlotError {
	switch {
	case len(slot.Data) > maxResult:
		return &wire.SlotError{Code: wire.CodeResultTooLarge,
			Message: fmt.Sprintf("the result takes %d bytes; %d are allowed", len(slot.Data), maxResult)}
	case slot.ContentType == "":
		if flaw := wire.FlawOf(slot.Data, wire.DefaultMaxDepth); flaw != nil {
			return flaw.Slot()
		}
		return nil
	}
	if _, _, err := mime.ParseMediaType(slot.ContentType); err != nil || len(slot.ContentType) > 255 {
		return &wire.SlotError{Code: wire.CodeBadResult,
			Message: fmt.Sprintf("the result's content type %.80q is not one", slot.ContentType)}
	}
	return nil
}

func (c *collector) Answered(reply *wire.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.service = reply.Service
	c.worked += reply.Took
}

func (c *collector) Worked(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests += took
}

// flush hands over the results so far once there is space for them. If the job ends first they are dropped, and
// fetched again.
func (c *collector) flush() {
	c.room.Lock()
	defer c.room.Unlock()
	c.mu.Lock()
	answer := settle.Answer{Slice: c.job.ID, Endpoint: c.job.Endpoint, Service: c.service, Answered: -1, Slots: c.slots}
	size := c.size
	c.slots, c.size = nil, 0
	c.waiting = time.Now()
	c.mu.Unlock()
	if len(answer.Slots) > 0 {
		c.f.hand(c.ctx, fetchResult{job: c.job, answer: answer, size: size, trace: c.trace})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocked += time.Since(c.waiting)
	c.waiting = time.Time{}
}

func (c *collector) late() *workqueue.SlotError {
	return &workqueue.SlotError{Code: core.CodeDeadline, Retry: true,
		Message: fmt.Sprintf("step %s did not end within %s", c.job.Work.Name, c.limited)}
}

// giveUp returns the failure of a chunk whose call did not return. The item in progress gets its own error, so that
// the chunk need not be split to find it.
func (c *collector) giveUp() *workqueue.SlotError {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, bit := workqueue.Ordinal(max(c.item, 0)).Block(); c.item >= 0 && c.asked.Has(bit) && c.asked.Count() > 1 {
		c.asked.Remove(bit)
		c.taken++
		c.slots = append(c.slots, settle.Slot{Ordinal: workqueue.Ordinal(c.item), Err: &workqueue.SlotError{
			Code: core.CodeDeadline, Retry: true, Message: fmt.Sprintf("step %s did not finish the item within %s",
				c.job.Work.Name, c.limited)}})
	}
	return c.late()
}

// finish hands over the remaining results and ends the chunk. failure applies to the items without a slot.
func (c *collector) finish(ctx context.Context, failure *workqueue.SlotError, took time.Duration) {
	c.mu.Lock()
	c.done = true
	answer := settle.Answer{Slice: c.job.ID, Endpoint: c.job.Endpoint, Service: c.service, Answered: c.taken,
		Slots: c.slots, Took: took.Seconds(), Worked: c.requests.Seconds()}
	if !c.asked.Empty() {
		answer.Failure = failure
	}
	if c.worked > 0 {
		answer.Took = c.worked.Seconds()
	}
	size, odd, left := c.size, c.odd, c.asked.Count()
	c.slots = nil
	c.mu.Unlock()
	log := c.f.node.Log.With(zap.Stringer("run", c.job.Run), zap.Stringer("slice", c.job.ID),
		zap.String("step", c.job.Work.Name), zap.String("of", c.job.Endpoint))
	if odd > 0 {
		c.f.node.Stats.OddSlots.Add(int64(odd))
		log.Warn("slots that were not requested, or came twice; they are dropped", zap.Int("slots", odd))
	}
	if failure != nil && left > 0 {
		c.f.node.Stats.FetchesFailed.Add(1)
		log.Info("a chunk failed", zap.String("code", failure.Code), zap.Int("items", left))
		log.Debug("a chunk failed", zap.String("message", failure.Message)) // may quote items
	}
	c.f.hand(ctx, fetchResult{job: c.job, answer: answer, size: size, trace: c.trace, ended: c.traced})
}

func (c *collector) panicked(p fetch.Panic) {
	if c.panics.Add(1) > 1 {
		return
	}
	c.f.node.Log.Error("a function panicked", zap.String("step", c.job.Work.Name), zap.String("of", c.job.Endpoint),
		zap.Stringer("run", c.job.Run), zap.Int("ordinal", p.Ordinal),
		zap.ByteString("stack", p.Stack))
	c.f.node.Log.Debug("a function panicked", zap.Any("panic", p.Value)) // may quote the item
}

// limit returns the context of a call, which ends at its timeout, not counting time spent waiting for the recorders.
func (c *collector) limit(ctx context.Context, timeout time.Duration) (timed context.Context, stop func()) {
	timed, cancel := context.WithCancelCause(ctx)
	c.ctx, c.limited = ctx, timeout
	begun := time.Now()
	go func() {
		for left := timeout; left > 0 && backoff.Sleep(timed, left) == nil; left = timeout + c.waited() - time.Since(begun) {
		}
		cancel(core.DeadlineError{Limit: timeout}) // without effect after its end
	}()
	return timed, func() { cancel(nil) }
}

func (c *collector) waited() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting.IsZero() {
		return c.blocked
	}
	return c.blocked + time.Since(c.waiting)
}
