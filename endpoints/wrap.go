package endpoints

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Wrapper runs around the handler of each chunk or flow stage: for a transaction, a span or a counter. It calls next
// once, with its context or one derived from it, and returns the error that applies to the unanswered items: that of
// next, nil, or its own. If it does not call next, the handler does not run, and items that the wrapper does not
// answer are left out.
//
// next returns the handler's error, one of CodePanic if the handler panicked, or one of CodeTimeout or CodeShutdown
// if its time ran out. With HandleEach, errors of single items are answers; next returns after all items are handled.
//
// A wrapper's own error or panic counts like a handler's. Wrappers run concurrently for different chunks.
type Wrapper func(ctx context.Context, w *Work, next func(context.Context) error) error

// Wrap runs f around the endpoint's handler, inside the wrappers of Config.Wrap and of earlier Wrap options.
func Wrap(f Wrapper) Option { return func(o *options) { o.wrap = append(o.wrap, f) } }

// Work is a wrapper's view of a chunk or flow stage. It is safe for concurrent use until the wrapper returns.
type Work struct {
	job   *serve.Job
	stage int
	inner serve.Wrapped
	wrap  []Wrapper
}

// within returns a function that calls handlers inside wrap, or nil if wrap is empty.
func within(wrap []Wrapper) serve.Around {
	if len(wrap) == 0 {
		return nil
	}
	return func(ctx context.Context, j *serve.Job, stage int, inner serve.Wrapped) error {
		return (&Work{job: j, stage: stage, inner: inner, wrap: wrap}).call(ctx, 0)
	}
}

// call calls wrapper n, or the handler after the last, and settles the answers it held.
func (w *Work) call(ctx context.Context, n int) error {
	a := &w.job.Answers
	if n == len(w.wrap) {
		w.inner.Items().LeaveOut()
		return a.UnlessOverflowed(w.inner.Handle(ctx))
	}
	holds := a.Holding()
	err := a.UnlessOverflowed(w.guard(ctx, n))
	a.Settle(holds, err != nil)
	return err
}

// guard calls wrapper n and converts a panic to an error.
func (w *Work) guard(ctx context.Context, n int) (err error) {
	defer func() {
		if value := recover(); value != nil {
			failure, stack := wire.Panicked(value, true)
			w.job.Log.Error("a wrapper panicked", zap.Any("panic", value), zap.String("stack", stack))
			err = serve.OwnError{Err: failure}
		}
	}()
	called := false
	return w.wrap[n](ctx, w, func(ctx context.Context) error {
		if called {
			return fmt.Errorf("a wrapper of endpoint %s called next twice; a chunk is handled once", w.job.Endpoint)
		}
		called = true
		return w.call(ctx, n+1)
	})
}

// Endpoint returns the endpoint's name.
func (w *Work) Endpoint() string { return w.job.Endpoint }

// Stage returns the stage of a flow, from 0, and 0 for other endpoints.
func (w *Work) Stage() int { return w.stage }

// ByItem reports whether the handler is called per item, as with HandleEach.
func (w *Work) ByItem() bool {
	byItem, ok := w.inner.(interface{ byItem() bool })
	return ok && byItem.byItem()
}

// Meta returns the metadata in the request's headers.
func (w *Work) Meta() wire.Meta { return w.job.Request.Meta }

// Header returns a copy of the request's headers.
func (w *Work) Header() nats.Header {
	header := maps.Clone(w.job.Header)
	for name, values := range header {
		header[name] = append([]string(nil), values...)
	}
	return header
}

// Items returns the unanswered items in request order: before next the handler's input, after it those that it left
// out or, in a flow, sent to the next stage.
func (w *Work) Items() []ItemInfo {
	a := &w.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	items := w.inner.Items().Unanswered()
	infos := make([]ItemInfo, len(items))
	for n, item := range items {
		infos[n] = infoOf(item)
	}
	return infos
}

// GoingOn returns, after next, the ordinals of items that the handler sent to a later stage of the flow.
func (w *Work) GoingOn() []int {
	items, ok := w.inner.Items().(serve.Onward)
	if !ok {
		return nil
	}
	a := &w.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return items.GoingOn()
}

// Answer answers an item in place of the handler; before next, the handler then does not see the item. It takes slots
// as returned by Answers. It fails without effect if the item does not exist or is already answered, or the slot is
// invalid.
func (w *Work) Answer(slot wire.Slot) error {
	if err := checkAnswer(slot); err != nil {
		return fmt.Errorf("answer item %d of endpoint %s: %w", slot.Ordinal, w.job.Endpoint, err)
	}
	a := &w.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if a.Closed || !w.inner.Items().ClaimFor(slot.Ordinal) {
		return fmt.Errorf("answer item %d of endpoint %s: it does not exist or was already answered", slot.Ordinal,
			w.job.Endpoint)
	}
	a.Write(slot)
	return nil
}

func checkAnswer(slot wire.Slot) error {
	switch {
	case slot.Err != nil && (slot.Data != nil || slot.ContentType != ""):
		return errors.New("the slot has a result and an error")
	case slot.Err == nil && slot.ContentType == "" && !jsontext.Value(slot.Data).IsValid():
		return errors.New("the slot's result is not JSON; set its ContentType, or encode it")
	case slot.Err == nil && slot.ContentType == "" && wire.CheckDepth(slot.Data) != nil:
		return fmt.Errorf("the slot's result cannot be read: %w", wire.CheckDepth(slot.Data))
	case slot.ContentType != "" && !wire.ValidContentType(slot.ContentType):
		return fmt.Errorf("content type %.80q is not one", slot.ContentType)
	}
	return nil
}

// Hold holds later answers back until the wrapper returns. If it returns nil they are sent. If it returns an error or
// panics they are dropped, and the error applies to their items too. At more than MaxHeld bytes per chunk, the
// handler's context ends and next returns an error of CodeHeldTooLarge.
func (w *Work) Hold() { w.job.Answers.Hold() }

// Answers returns the answers since the wrapper's Hold, in answer order, or none without Hold. Do not modify their
// data, nor use it after the wrapper has returned.
func (w *Work) Answers() ([]wire.Slot, error) {
	slots, err := w.job.Answers.HeldSlots()
	if err != nil {
		return nil, fmt.Errorf("read the held answers of endpoint %s: %w", w.job.Endpoint, err)
	}
	return slots, nil
}

// Errors returns how many items were answered with an error so far, including payloads that did not fit.
func (w *Work) Errors() int {
	a := &w.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return a.Errors
}

// SetTrace sets the W3C trace context of the reply and, in a flow, of the stage's requests. By default it is the
// request's. An invalid traceparent removes it.
func (w *Work) SetTrace(traceparent, tracestate string) {
	a := &w.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	before := wire.HeaderSize(a.Header)
	wire.ParseTrace(traceparent, tracestate).SetHeader(a.Header)
	if grown := wire.HeaderSize(a.Header) - before; grown > 0 {
		a.Flush() // the buffer may exceed the lower limit
		a.Limit -= grown
	}
}
