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
	end, failure, begun := w.job.isolate(ctx, stopping)
	if end == nil {
		return failure, begun
	}
	defer end()
	if len(w.chunk.items) == 0 && len(w.job.wrap) == 0 {
		return nil, true
	}
	ctx, cancel := context.WithTimeout(ctx, w.job.timeout)
	defer cancel()
	return runWrapped(ctx, w.job, 0, w), true
}

func (w *listWork[In, Out]) items() workItems { return w.chunk }

func (w *listWork[In, Out]) handle(ctx context.Context) (err error) {
	if len(w.chunk.items) == 0 {
		return nil
	}
	defer func() {
		if value := recover(); value != nil {
			failure, stack := panicked(value, true)
			err = ownError{failure}
			w.job.log.Error("the handler panicked", zap.Any("panic", value), zap.String("stack", stack))
		}
	}()
	if err := w.handler(ctx, w.chunk); err != nil && !isCut(ctx, err) {
		return err
	}
	if ctx.Err() != nil {
		return ownError{cutShort(ctx)}
	}
	return nil
}
