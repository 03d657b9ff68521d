package endpoints

import (
	"context"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
)

// eachWork calls a HandleEach handler. Up to as many workers as there are slots go through the items; each takes one
// slot, once.
type eachWork[In, Out any] struct {
	job       *job
	chunk     *Chunk[In, Out]
	handler   func(context.Context, In) (Out, error)
	next      atomic.Int64
	exhausted chan struct{} // closed when no further worker is of use
	once      sync.Once     // closes exhausted
}

func (w *eachWork[In, Out]) run(
	ctx context.Context, slots chan struct{}, stopping <-chan struct{},
) (failure *SlotError, begun bool) {
	if !take(slots, stopping) {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, w.job.timeout)
	defer cancel()
	contexts := make([]itemContext, len(w.chunk.items))
	var helpers sync.WaitGroup
	for range min(cap(slots), len(w.chunk.items)) - 1 {
		helpers.Go(func() {
			if take(slots, w.exhausted) {
				w.drain(ctx, contexts, slots)
			}
		})
	}
	w.drain(ctx, contexts, slots)
	helpers.Wait()
	if ctx.Err() != nil {
		return cutShort(ctx), true
	}
	return nil, true
}

// drain handles items until none is left or ctx ends, and gives the slot back.
func (w *eachWork[In, Out]) drain(ctx context.Context, contexts []itemContext, slots chan struct{}) {
	defer func() { <-slots }()
	defer w.once.Do(func() { close(w.exhausted) }) // nothing is left, or ctx has ended
	items := w.chunk.items
	for ctx.Err() == nil {
		n := int(w.next.Add(1)) - 1
		if n >= len(items) {
			return
		}
		contexts[n] = itemContext{Context: ctx, request: w.job.request, ordinal: items[n].Ordinal, key: items[n].Key}
		w.call(&contexts[n], items[n])
	}
}

func (w *eachWork[In, Out]) call(ctx context.Context, item *Item[In, Out]) {
	defer func() {
		if value := recover(); value != nil {
			failure, stack := panicked(value, false)
			w.job.log.Error("the handler panicked", zap.Int("ordinal", item.Ordinal), zap.Any("panic", value),
				zap.String("stack", stack))
			item.answer(failure)
		}
	}()
	result, err := w.handler(ctx, item.In)
	if err != nil {
		item.answer(asSlotError(ctx, err, false))
		return
	}
	item.Reply(result)
}
