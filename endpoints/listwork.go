package endpoints

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// listWork calls a HandleList handler. It takes one slot.
type listWork[In, Out any] struct {
	job     *job
	chunk   *Chunk[In, Out]
	handler func(context.Context, *Chunk[In, Out]) error
}

func (w *listWork[In, Out]) run(
	ctx context.Context, slots *slots, stopping <-chan struct{},
) (failure *wire.SlotError, begun bool) {
	return w.job.inSlot(ctx, slots, stopping, func() *wire.SlotError {
		if len(w.chunk.items) == 0 && len(w.job.wrap) == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, w.job.timeout)
		defer cancel()
		return runWrapped(ctx, w.job, 0, w)
	})
}

func (w *listWork[In, Out]) items() workItems { return w.chunk }

func (w *listWork[In, Out]) handle(ctx context.Context) error {
	if len(w.chunk.items) == 0 {
		return nil
	}
	return w.job.guard(ctx, func(ctx context.Context) error { return w.handler(ctx, w.chunk) })
}

// inSlot runs what takes one slot, alone when it has to be. begun is false when stopping was closed before.
func (j *job) inSlot(
	ctx context.Context, slots *slots, stopping <-chan struct{}, f func() *wire.SlotError,
) (failure *wire.SlotError, begun bool) {
	if !slots.take(j.lane(), stopping) {
		return nil, false
	}
	since := time.Now()
	defer func() { slots.give(j.lane(), since) }()
	end, failure, begun := j.isolate(ctx, stopping)
	if end == nil {
		return failure, begun
	}
	defer end()
	j.answers.start()
	return f(), true
}

// guard calls the handler of a whole chunk. A panic, or the end of ctx, is the error of the chunk.
func (j *job) guard(ctx context.Context, handler func(context.Context) error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			failure, stack := wire.Panicked(value, true)
			err = ownError{failure}
			j.log.Error("the handler panicked", zap.Any("panic", value), zap.String("stack", stack))
		}
	}()
	if err := handler(ctx); err != nil && !wire.IsCut(ctx, err) {
		return err
	}
	if ctx.Err() != nil {
		return ownError{wire.CutShort(ctx)}
	}
	return nil
}
