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

// HandleList serves an endpoint chunk by chunk: one call of handler gets all items of a request, so that one query
// can fetch the data of all. The handler answers each item with Reply, Fail or Retry; unanswered items are retried. A
// returned error or a panic applies to all unanswered items.
//
// After a panic, or an error not made by Fail, the items are retried together after a growing pause, and split into
// smaller chunks only when their attempts are used up. After an error made by Fail they are split immediately.
//
// The service announces the fields of In and Out. A run is refused if its items lack a field of In that is not a
// pointer, an interface, omitempty or omitzero.
//
// It returns an error if the name is invalid or already has a handler, or an option is invalid.
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

// HandleEach serves an endpoint item by item, with up to Concurrency items in parallel. The handler's result or error
// answers the item: an error made by Fail or Retry as such, any other as a permanent error of CodeHandlerError. A
// panic affects only its item. ItemOf returns the current item.
//
// It returns an error if the name is invalid or already has a handler, or an option is invalid.
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

func endpointOf(name string, o options, contract wire.Contract, begin func(*serve.Job) serve.Work) endpoint {
	return endpoint{Server: &serve.Server{Name: name, Settings: o.Settings, Contract: contract, Begin: begin}}
}

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

// Aliases of the protocol types that services use; package wire has the rest.
type (
	// SlotError is the error of one item.
	SlotError = wire.SlotError
	// Binary is a result, answer or part that is not JSON.
	Binary = wire.Binary
	// Part is another step's result for an item.
	Part = wire.Part
	// Slot is one item's answer.
	Slot = wire.Slot
	// Operation is an item to collect.
	Operation = wire.Operation
	// Trace is a W3C trace context.
	Trace = wire.Trace
	// PermissionError reports a permission that NATS denies.
	PermissionError = stream.PermissionError
)

// MaxHeld bounds the bytes of answers that wrappers hold for one chunk: 64 MiB.
const MaxHeld = serve.MaxHeld

// MaxState bounds the state of a suspended chunk, as JSON: 16 MiB.
const MaxState = flow.MaxState

// Defaults of the options.
const (
	DefaultListConcurrency = 2
	DefaultEachConcurrency = 8
	// DefaultTimeout applies to one call of a handler or stage; then items fail with `timeout`, retryable.
	DefaultTimeout    = 10 * time.Minute
	DefaultFlushBytes = 256 << 10
)

// Option configures an endpoint.
type Option func(*options)

type options struct {
	serve.Settings
	wrap []Wrapper
}

// Concurrency sets how many chunks (HandleList, HandleFlow; default 2) or items (HandleEach; default 8) this instance
// handles in parallel. While handlers are fast, as many chunks again are prefetched, up to 8 MiB.
// Service.SetConcurrency changes it at run time; a value set by an operator has precedence.
func Concurrency(n int) Option { return func(o *options) { o.Concurrency = n } }

// Reserve adds n slots for calls and for flows started by calls. They have priority over chunks everywhere, but
// without a reserved slot they wait until a chunk, or an item of HandleEach, ends. The default is 1 if Concurrency is
// 4 or more, else 0.
func Reserve(n int) Option { return func(o *options) { o.Reserve = n } }

// Timeout bounds the handling of a chunk; the default is 10 minutes. When it expires, the handler's context ends and
// unanswered items fail with a retryable error. Keep the node's request timeout longer.
func Timeout(d time.Duration) Option { return func(o *options) { o.Timeout = d } }

// FlushBytes sets how many bytes of answers are sent as one part of the reply; the default is 256 KiB. A message
// never exceeds the server's max_payload.
func FlushBytes(n int) Option { return func(o *options) { o.FlushBytes = n } }

// Compress compresses messages of at least n bytes with zstd. Off by default. It saves most of a reply's bytes for
// about 0.3 µs per item.
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
