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

// Wrapper is called around the handler of each chunk, or stage of a flow: for a transaction, a span, a counter. It
// calls next once, with its context or one made from it, and returns what speaks for the items that are not answered:
// the error of next, nil, or one of its own. When it does not call next, the handler does not see the chunk, and the
// items that the wrapper does not answer are left out.
//
// next returns the handler's error. It also returns one, of code CodePanic, when the handler has panicked, and one of
// code CodeTimeout or CodeShutdown when the handler has run out of time, whatever it returned. With HandleEach the
// errors of single items are answers, and next returns when every item has been handled.
//
// A wrapper's own error and panic count like a handler's. Wrappers of several chunks run at the same time.
type Wrapper func(ctx context.Context, w *Work, next func(context.Context) error) error

// Wrap has f called around the handler of an endpoint, inside of the wrappers of Config.Wrap and of Wrap options that
// stand before it.
func Wrap(f Wrapper) Option { return func(o *options) { o.wrap = append(o.wrap, f) } }

// Work is a chunk, or a stage of one, as wrappers see it. It is safe for concurrent use, and must not be used after the
// wrapper has returned.
type Work struct {
	job   *serve.Job
	stage int
	inner serve.Wrapped
	wrap  []Wrapper
}

// within returns what calls handlers within wrappers; nil when there are none.
func within(wrap []Wrapper) serve.Around {
	if len(wrap) == 0 {
		return nil
	}
	return func(ctx context.Context, j *serve.Job, stage int, inner serve.Wrapped) error {
		return (&Work{job: j, stage: stage, inner: inner, wrap: wrap}).call(ctx, 0)
	}
}

// call calls wrapper n, or the handler when there is none, and settles what it held.
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

// guard calls wrapper n and turns a panic into an error.
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

// Endpoint returns the name of the endpoint.
func (w *Work) Endpoint() string { return w.job.Endpoint }

// Stage returns the stage of a flow, from 0. It is 0 for an endpoint that is not a flow, too.
func (w *Work) Stage() int { return w.stage }

// ByItem reports whether the handler is called for each item, as HandleEach does.
func (w *Work) ByItem() bool {
	byItem, ok := w.inner.(interface{ byItem() bool })
	return ok && byItem.byItem()
}

// Meta returns what the request's headers say.
func (w *Work) Meta() wire.Meta { return w.job.Request.Meta }

// Header returns a copy of the request's headers.
func (w *Work) Header() nats.Header {
	header := maps.Clone(w.job.Header)
	for name, values := range header {
		header[name] = append([]string(nil), values...)
	}
	return header
}

// Items returns the items that are not answered, in the order of the request. Before next those are the ones that the
// handler will see; after it, the ones that it left out or, in a flow, sent on.
func (w *Work) Items() []ItemInfo {
	a := &w.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return infosOf(w.inner.Items().Unanswered())
}

// GoingOn returns the ordinals of the items that the handler has sent on to a later stage of the flow. It is for use
// after next.
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

// Answer answers an item in the handler's place. Before next it keeps the item from the handler. The slot is one as
// Answers returns it. It fails, and changes nothing, when there is no such item or it has been answered, and when the
// slot holds no result.
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

// checkAnswer holds a slot to the shape that Work.Answers returns.
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

// Hold keeps the answers that follow back until the wrapper has returned. When it returns nil they are sent; when it
// returns an error, or panics, they are dropped, and the error speaks for their items as well. Up to MaxHeld bytes are
// held for a chunk: at more the handler's context ends, and next returns an error of code CodeHeldTooLarge.
func (w *Work) Hold() { w.job.Answers.Hold() }

// Answers returns what has been answered since the wrapper's Hold, in the order of the answers, and nothing without a
// Hold. Their data must not be changed, nor used after the wrapper has returned.
func (w *Work) Answers() ([]wire.Slot, error) {
	slots, err := w.job.Answers.HeldSlots()
	if err != nil {
		return nil, fmt.Errorf("read the held answers of endpoint %s: %w", w.job.Endpoint, err)
	}
	return slots, nil
}

// Errors returns how many items have been answered with an error so far, those among them whose payload did not fit the
// handler's input.
func (w *Work) Errors() int {
	a := &w.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return a.Errors
}

// SetTrace sets the W3C trace context that the reply, and in a flow the requests of this stage, will carry. Without it
// that of the request goes on. What ParseTrace does not take removes it.
func (w *Work) SetTrace(traceparent, tracestate string) {
	a := &w.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	before := wire.HeaderSize(a.Header)
	wire.ParseTrace(traceparent, tracestate).SetHeader(a.Header)
	if grown := wire.HeaderSize(a.Header) - before; grown > 0 {
		a.Flush() // it was filled up to a limit that is now too high
		a.Limit -= grown
	}
}
