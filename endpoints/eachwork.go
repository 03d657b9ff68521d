package endpoints

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// eachWork calls a HandleEach handler. Each worker holds one slot. A worker is added when a slot is free, and leaves
// when concurrency is lowered or a call is waiting.
type eachWork[In, Out any] struct {
	job       *serve.Job
	chunk     *Chunk[In, Out]
	handler   func(context.Context, In) (Out, error)
	next      atomic.Int64
	slots     *serve.Slots
	lane      serve.Lane
	since     time.Time     // when Run took its slot
	owned     bool          // no worker has taken over the slot of Run
	exhausted chan struct{} // closed when more workers would not help
	once      sync.Once     // closes exhausted
}

func (w *eachWork[In, Out]) Run(
	ctx context.Context, slots *serve.Slots, stopping <-chan struct{},
) (failure *wire.SlotError, begun bool) {
	w.lane = w.job.Lane()
	if !slots.Take(w.lane, stopping) {
		return nil, false
	}
	w.slots, w.owned, w.since = slots, true, time.Now()
	defer func() {
		if w.owned { // a wrapper did not call the handler
			slots.Give(w.lane, w.since)
		}
	}()
	end, failure, begun := w.job.Isolate(ctx, stopping)
	if end == nil {
		return failure, begun
	}
	defer end()
	w.job.Answers.Start()
	ctx, cancel := context.WithTimeout(ctx, w.job.Timeout)
	defer cancel()
	return serve.RunWrapped(ctx, w.job, 0, w), true
}

func (w *eachWork[In, Out]) Items() serve.WorkItems { return (*listed[In, Out])(w.chunk) }

func (w *eachWork[In, Out]) byItem() bool { return true }

func (w *eachWork[In, Out]) Handle(ctx context.Context) error {
	w.owned = false // the first worker owns the slot now
	contexts := make([]itemContext, len(w.chunk.items))
	var workers sync.WaitGroup
	for n := 1; ; n++ {
		workers.Go(func() { w.drain(ctx, contexts, w.slots) })
		// Each worker handles at least one item, so one worker per item is enough even if some leave.
		if n >= len(w.chunk.items) || !w.slots.Take(w.lane, w.exhausted) {
			break
		}
	}
	workers.Wait()
	if ctx.Err() != nil {
		return serve.OwnError{Err: wire.CutShort(ctx)}
	}
	return nil
}

// drain handles items until none is left, ctx ends or the slot is yielded, and releases the slot.
func (w *eachWork[In, Out]) drain(ctx context.Context, contexts []itemContext, slots *serve.Slots) {
	yielded, since := false, time.Now()
	defer func() { // also when a handler calls runtime.Goexit
		if !yielded {
			w.once.Do(func() { close(w.exhausted) })
			slots.Give(w.lane, since)
		}
	}()
	items := w.chunk.items
	for ctx.Err() == nil {
		n := int(w.next.Add(1)) - 1
		if n >= len(items) {
			return
		}
		contexts[n] = itemContext{ctx, items[n].facts()}
		w.call(&contexts[n], items[n])
		if yielded = slots.Yield(w.lane, since); yielded {
			return
		}
	}
}

func (w *eachWork[In, Out]) call(ctx context.Context, item *Item[In, Out]) {
	defer func() {
		if value := recover(); value != nil {
			failure, stack := wire.Panicked(value, false)
			w.job.Log.Error("the handler panicked", zap.Int("ordinal", item.Ordinal), zap.Any("panic", value),
				zap.String("stack", stack))
			item.fault(failure)
		}
	}()
	result, err := w.handler(ctx, item.In)
	if err != nil {
		if serve.Undecided(err) {
			item.fault(wire.AsSlotError(ctx, err, false))
		} else {
			item.answer(wire.AsSlotError(ctx, err, false))
		}
		return
	}
	item.Reply(result)
}
