package serve

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/admission"
	"github.com/tranchehq/tranche/endpoints/internal/reply"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Work is a decoded chunk in the hands of its handler.
type Work interface {
	// Run takes what it needs of the slots, calls the handler and returns the failure that speaks for what is not
	// answered, if any. It returns false when stopping was closed before the handler was called at all.
	Run(ctx context.Context, slots *admission.Slots, stopping <-chan struct{}) (failure *wire.SlotError, begun bool)
}

// Around calls the handler of a chunk, or of a stage, within whatever is called around handlers.
type Around func(ctx context.Context, j *Job, stage int, inner Wrapped) error

// Wrapped is what wrappers can be called around.
type Wrapped interface {
	// Handle calls the handler for the items that are not answered, and turns its panic and its end of time into an
	// error.
	Handle(ctx context.Context) error
	// Items returns what the handler will see.
	Items() WorkItems
}

// WorkItems is the items of a chunk, whatever their type.
type WorkItems interface {
	// Unanswered returns the items that nobody has answered, in the order of the request.
	Unanswered() []Item
	// ClaimFor notes that an item will be answered by a wrapper, or reports false when it is not there or answered. It is
	// called with answers.mu held.
	ClaimFor(ordinal int) bool
	// LeaveOut drops the answered items from those that the handler will see.
	LeaveOut()
}

// Onward is implemented by items that may go on without an answer: those of a stage.
type Onward interface {
	// GoingOn returns the ordinals of the items that have been sent on to a later stage.
	GoingOn() []int
}

// RunWrapped calls the handler of a chunk, or of a stage, within the wrappers of its endpoint. It returns the failure
// that speaks for what is not answered, if any. Answers that wrappers held have been sent, or dropped, by then.
func RunWrapped(ctx context.Context, j *Job, stage int, inner Wrapped) *wire.SlotError {
	var err error
	if j.Around == nil {
		err = inner.Handle(ctx)
	} else {
		err = j.Around(ctx, j, stage, inner)
	}
	if err == nil {
		return nil
	}
	j.undecided = reply.Undecided(err)
	// What fails a whole chunk is most often something that passes, such as a database that is down. An error that is not
	// retryable would be halved at once, and each half's halves: twice as many calls as there are items.
	return wire.AsSlotError(ctx, err, true)
}

// Item is one item of a request, as wrappers and handlers are told of it.
type Item struct {
	Request *wire.Request
	Ordinal int
	Key     string
	Parts   wire.Parts
}

// InSlot runs what takes one slot, alone when it has to be. begun is false when stopping was closed before.
func (j *Job) InSlot(
	ctx context.Context, slots *admission.Slots, stopping <-chan struct{}, f func() *wire.SlotError,
) (failure *wire.SlotError, begun bool) {
	if !slots.Take(j.Lane(), stopping) {
		return nil, false
	}
	since := time.Now()
	defer func() { slots.Give(j.Lane(), since) }()
	end, failure, begun := j.Isolate(ctx, stopping)
	if end == nil {
		return failure, begun
	}
	defer end()
	j.Answers.Start()
	return f(), true
}

// Guard calls the handler of a whole chunk. A panic, or the end of ctx, is the error of the chunk.
func (j *Job) Guard(ctx context.Context, handler func(context.Context) error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			failure, stack := wire.Panicked(value, true)
			err = reply.OwnError{Err: failure}
			j.Log.Error("the handler panicked", zap.Any("panic", value), zap.String("stack", stack))
		}
	}()
	if err := handler(ctx); err != nil && !wire.IsCut(ctx, err) {
		return err
	}
	if ctx.Err() != nil {
		return reply.OwnError{Err: wire.CutShort(ctx)}
	}
	return nil
}
