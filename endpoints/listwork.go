package endpoints

import (
	"context"

	"go.uber.org/zap"
)

// listWork calls a HandleList handler. It takes one slot.
type listWork[In, Out any] struct {
	job     *job
	chunk   *Chunk[In, Out]
	handler func(context.Context, *Chunk[In, Out]) error
}

func (w *listWork[In, Out]) run(
	ctx context.Context, slots *slots, stopping <-chan struct{},
) (failure *SlotError, begun bool) {
	if !slots.take(stopping) {
		return nil, false
	}
	defer slots.give()
	if len(w.chunk.items) == 0 {
		return nil, true
	}
	ctx, cancel := context.WithTimeout(ctx, w.job.timeout)
	defer cancel()
	return w.call(ctx), true
}

func (w *listWork[In, Out]) call(ctx context.Context) (failure *SlotError) {
	defer func() {
		if value := recover(); value != nil {
			var stack string
			failure, stack = panicked(value, true)
			w.job.log.Error("the handler panicked", zap.Any("panic", value), zap.String("stack", stack))
		}
	}()
	if err := w.handler(ctx, w.chunk); err != nil {
		// What fails a whole chunk is most often something that passes, such as a database that is down. An error that
		// is not retryable would be halved at once, and each half's halves: twice as many calls as there are items.
		return asSlotError(ctx, err, true)
	}
	if ctx.Err() != nil {
		return cutShort(ctx)
	}
	return nil
}
