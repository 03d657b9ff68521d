package endpoints

import (
	"context"
	"fmt"

	"github.com/tranchehq/tranche/endpoints/internal/admission"
	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// HandleList has svc serve an endpoint chunk by chunk: one call of handler for all items of a request, so that one
// query can fetch what all of them need. The handler answers each item with Reply, Fail or Retry; an item that it
// leaves out will be tried again. An error, or a panic, speaks for the items not answered by then.
//
// A panic, and an error that is not of Fail, count as something that may pass: the items are tried again together,
// after a pause that grows, and only when their attempts are used up in ever smaller chunks, to find the culprit. After
// an error of Fail they are taken apart at once.
//
// The service announces the fields of In and Out. A start whose items lack a field of In is refused, unless the field
// is a pointer, an interface, or has omitempty or omitzero.
//
// It fails when the name cannot be an endpoint's, has a handler already, or an option is out of range.
func HandleList[In, Out any](
	svc *Service, endpoint string, handler func(context.Context, *Chunk[In, Out]) error, opts ...Option,
) error {
	o, err := newOptions(DefaultListConcurrency, opts)
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	e := endpointOf(endpoint, o, contractOf[In, Out](), func(j *serve.Job) serve.Work {
		return &listWork[In, Out]{job: j, chunk: newChunk[In, Out](j), handler: handler}
	})
	return svc.register(e, o.wrap)
}

// HandleEach has svc serve an endpoint item by item, Concurrency of them at once. A result or an error of handler
// answers the item: see Fail and Retry for errors; any other is not retryable and has code CodeHandlerError. A panic
// costs the item only. ItemOf tells the handler which item it has.
//
// It fails when the name cannot be an endpoint's, has a handler already, or an option is out of range.
func HandleEach[In, Out any](
	svc *Service, endpoint string, handler func(context.Context, In) (Out, error), opts ...Option,
) error {
	o, err := newOptions(DefaultEachConcurrency, opts)
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	e := endpointOf(endpoint, o, contractOf[In, Out](), func(j *serve.Job) serve.Work {
		return &eachWork[In, Out]{job: j, chunk: newChunk[In, Out](j), handler: handler,
			exhausted: make(chan struct{})}
	})
	e.ByItem = true
	return svc.register(e, o.wrap)
}

// endpointOf returns what serves an endpoint, once it is registered.
func endpointOf(name string, o options, contract wire.Contract, begin func(*serve.Job) serve.Work) endpoint {
	return endpoint{Server: &serve.Server{Name: name, Settings: o.Settings, Contract: contract, Begin: begin}}
}

// listWork calls a HandleList handler. It takes one slot.
type listWork[In, Out any] struct {
	job     *serve.Job
	chunk   *Chunk[In, Out]
	handler func(context.Context, *Chunk[In, Out]) error
}

func (w *listWork[In, Out]) Run(
	ctx context.Context, slots *admission.Slots, stopping <-chan struct{},
) (failure *wire.SlotError, begun bool) {
	return w.job.InSlot(ctx, slots, stopping, func() *wire.SlotError {
		if len(w.chunk.items) == 0 && w.job.Around == nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, w.job.Timeout)
		defer cancel()
		return serve.RunWrapped(ctx, w.job, 0, w)
	})
}

func (w *listWork[In, Out]) Items() serve.WorkItems { return (*listed[In, Out])(w.chunk) }

func (w *listWork[In, Out]) Handle(ctx context.Context) error {
	if len(w.chunk.items) == 0 {
		return nil
	}
	return w.job.Guard(ctx, func(ctx context.Context) error { return w.handler(ctx, w.chunk) })
}
