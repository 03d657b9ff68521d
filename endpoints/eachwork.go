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

// eachWork calls a HandleEach handler. Workers go through the items, each in a slot that it keeps. One is added
// whenever there is a free slot, and one leaves whenever there are more than there should be, or
// someone waits who comes first.
type eachWork[In, Out any] struct {
	job       *serve.Job
	chunk     *Chunk[In, Out]
	handler   func(context.Context, In) (Out, error)
	next      atomic.Int64
	slots     *serve.Slots
	lane      serve.Lane
	since     time.Time     // when run took its slot
	owned     bool          // run has a slot that no worker has taken over
	exhausted chan struct{} // closed when no further worker is of use
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
		if w.owned { // a wrapper has not called the handler
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
	w.owned = false // the first worker has it
	contexts := make([]itemContext, len(w.chunk.items))
	var workers sync.WaitGroup
	for n := 1; ; n++ {
		workers.Go(func() { w.drain(ctx, contexts, w.slots) })
		// Each worker handles one item at least, so that as many as there are items are enough, whoever leaves.
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

// drain handles items until none is left, ctx ends or the slot is to go, and gives the slot back.
func (w *eachWork[In, Out]) drain(ctx context.Context, contexts []itemContext, slots *serve.Slots) {
	yielded, since := false, time.Now()
	defer func() { // also when a handler ends the goroutine
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
