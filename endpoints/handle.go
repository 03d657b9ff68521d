package endpoints

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tranchehq/tranche/endpoints/internal/flow"
	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// HandleList has svc serve an endpoint chunk by chunk: one call of handler for all items of a request, so that one
// query can fetch what all of them need. The handler answers each item with Reply, Fail or Retry; an item that it
// leaves out will be retried. An error, or a panic, speaks for the items not answered by then.
//
// A panic, and an error that is not of Fail, count as something that may pass: the items are retried together,
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
	ctx context.Context, slots *serve.Slots, stopping <-chan struct{},
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

// What authors of services meet of the messages; package wire has the rest.
type (
	// SlotError is the error of one item.
	SlotError = wire.SlotError
	// Binary is a result, an answer or a part that is not JSON.
	Binary = wire.Binary
	// Part is what another step of the run has made of an item.
	Part = wire.Part
	// Slot is one item's place in an answer.
	Slot = wire.Slot
	// Operation is what a collector is given.
	Operation = wire.Operation
	// Trace is a W3C trace context.
	Trace = wire.Trace
	// PermissionError says what NATS does not permit.
	PermissionError = stream.PermissionError
)

// MaxHeld bounds the bytes of the answers to one chunk that a wrapper holds: 64 MiB.
const MaxHeld = serve.MaxHeld

// MaxState is how large the state of a suspended chunk may be, written as JSON: 16 MiB.
const MaxState = flow.MaxState

// Defaults of the options.
const (
	DefaultListConcurrency = 2
	DefaultEachConcurrency = 8
	// One handler, or stage; then `timeout`, to be retried.
	DefaultTimeout    = 10 * time.Minute
	DefaultFlushBytes = 256 << 10
)

// Option sets how one endpoint is served.
type Option func(*options)

type options struct {
	serve.Settings
	wrap []Wrapper
}

// Concurrency is how many chunks (HandleList, default 2) or items (HandleEach, default 8) are handled at once by this
// instance. While handlers are quick, as many chunks again are fetched ahead, up to 8 MiB. Service.SetConcurrency
// changes it while the service runs, and so do operators, whose word comes first.
func Concurrency(n int) Option { return func(o *options) { o.Concurrency = n } }

// Reserve keeps n places for those who wait, beside those that Concurrency has for chunks: calls, and flows on behalf
// of one. They come before chunks everywhere, but without a place of their own they wait until a chunk, or an item of
// HandleEach, has ended. Default: 1 where Concurrency is 4 or more, so that up to n more handlers run at once than it
// says; else 0.
func Reserve(n int) Option { return func(o *options) { o.Reserve = n } }

// Timeout is how long a chunk may take, by default 10 minutes. Then the handler's context ends, and what is not
// answered by then is reported as to be retried. The node's deadline for the slice should be longer.
func Timeout(d time.Duration) Option { return func(o *options) { o.Timeout = d } }

// FlushBytes sends a part of the reply whenever so many bytes are ready, by default 256 KiB. A message never passes the
// server's max_payload, whatever this says.
func FlushBytes(n int) Option { return func(o *options) { o.FlushBytes = n } }

// Compress sends messages of at least n bytes as zstd. Off by default: it saves most of the bytes of a reply for about
// a third of a microsecond an item.
func Compress(n int) Option { return func(o *options) { o.Compress = n } }

func newOptions(concurrency int, list []Option) (options, error) {
	o := options{Settings: serve.Settings{Concurrency: concurrency, Reserve: -1, Timeout: DefaultTimeout,
		FlushBytes: DefaultFlushBytes}}
	for _, set := range list {
		set(&o)
	}
	switch {
	case o.Concurrency < 1 || o.Concurrency > wire.MaxConcurrency:
		return o, fmt.Errorf("Concurrency is %d; it must be 1 to %d", o.Concurrency, wire.MaxConcurrency)
	case o.Reserve < -1 || o.Reserve > wire.MaxConcurrency:
		return o, fmt.Errorf("Reserve is %d; it must be 0 to %d", o.Reserve, wire.MaxConcurrency)
	case o.Timeout <= 0:
		return o, fmt.Errorf("Timeout is %s; it must be positive", o.Timeout)
	case o.FlushBytes < 1:
		return o, errors.New("FlushBytes must be positive")
	case !validRevision(o.Revision):
		return o, fmt.Errorf("Revision is %.80q; use up to %d printable ASCII characters", o.Revision, maxRevision)
	case o.Compress < 0:
		return o, errors.New("Compress must not be negative")
	case slices.ContainsFunc(o.wrap, func(w Wrapper) bool { return w == nil }):
		return o, errors.New("Wrap needs a function")
	}
	return o, nil
}
