package endpoints

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// DefaultCallTimeout is how long a call waits when its context has no deadline.
const DefaultCallTimeout = 30 * time.Second

// CallItem is one item of a CallList. Its Key is the caller's id of it, for handlers and messages; keys may be equal.
type CallItem[In any] struct {
	Key string
	In  In
}

// CallResult is what became of one item of a CallList: Out, or Err.
type CallResult[Out any] struct {
	Key string
	Out Out
	Err *wire.SlotError
}

// CallOption changes how a call asks.
type CallOption func(*callOptions)

type callOptions struct {
	direct bool
	caller string
	origin string
	params map[string]string
}

// Direct has the call go over core NATS: nothing is persisted and nothing delivered again, and it is at once clear when
// nobody listens. Without it the request waits in a stream until a service is there, or its time is over.
func Direct() CallOption { return func(o *callOptions) { o.direct = true } }

// CallerName names who calls. It is a part of the subject that answers come in by, tranche.call.<name>.>, which is what
// permissions are given for. It has the form of an endpoint's name. Default: the endpoint whose handler calls, or
// "caller".
func CallerName(name string) CallOption { return func(o *callOptions) { o.caller = name } }

// CallParams gives the handlers parameters, which they read by Param. They take at most 16 KiB.
func CallParams(params map[string]string) CallOption {
	return func(o *callOptions) { o.params = params }
}

// CallOrigin says who asked first, for people: it stands in dead letters. Of over 256 bytes the rest is cut. Default:
// that of the request whose handler calls.
func CallOrigin(origin string) CallOption { return func(o *callOptions) { o.origin = origin } }

// Call asks an endpoint for one item and waits for the answer until ctx ends, or 30 s if it has no deadline.
// With Out = Binary it takes binary results, and with json.RawMessage whatever comes.
//
// The error is a *SlotError when the endpoint, or its service, has answered with an error; Retry then says whether it
// may pass. Otherwise there is no answer: a *NoListenersError (with Direct), a *PermissionError, a *RequestError, a
// *BadReplyError, or an *UnansweredError, which is a context.DeadlineExceeded or context.Canceled as well. The request
// may have been worked on all the same.
//
// The request is in mode single: what fails and may pass is tried again while there is time, and what dies is kept as a
// dead letter; with Direct neither. Each call is a run of its own, so handlers see other idempotency keys each time.
//
// It may be used in a handler. Then the endpoints that wait for one another are counted, and a call that would be one
// too many fails with CodeStackTooDeep. A flow needs no waiting: see HandleFlow.
func Call[In, Out any](
	ctx context.Context, nc *nats.Conn, endpoint, key string, in In, opts ...CallOption,
) (Out, error) {
	results, err := callAll[In, Out](ctx, nc, endpoint, []CallItem[In]{{key, in}}, wire.ModeSingle, opts)
	if err != nil {
		var none Out
		return none, err
	}
	if results[0].Err != nil {
		return results[0].Out, results[0].Err
	}
	return results[0].Out, nil
}

// CallList asks an endpoint for a list of items, in as many requests as it takes, and waits for all answers as Call
// does. The results stand in the order of the items. Errors of items, or of their chunks, stand in the results.
//
// The error is that of Call when not all was answered; it is never a *SlotError but for CodeStackTooDeep. The results
// are then there as far as they came, unless the call could not begin, and each other item has an error of
// CodeUnanswered.
//
// The requests are in mode batch: an error comes back at the first try, and nothing becomes a dead letter.
func CallList[In, Out any](
	ctx context.Context, nc *nats.Conn, endpoint string, items []CallItem[In], opts ...CallOption,
) ([]CallResult[Out], error) {
	return callAll[In, Out](ctx, nc, endpoint, items, wire.ModeBatch, opts)
}

func callAll[In, Out any](
	ctx context.Context, nc *nats.Conn, endpoint string, items []CallItem[In], mode wire.Mode, opts []CallOption,
) ([]CallResult[Out], error) {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultCallTimeout)
		defer cancel()
	}
	results := make([]CallResult[Out], len(items))
	for n := range items {
		results[n].Key = items[n].Key
	}
	c, err := newCall(ctx, nc, endpoint, mode, opts)
	if err != nil {
		return nil, err
	}
	c.box = newAnswerBox(endpoint, len(items), func(n int, slot wire.Slot) { results[n].take(endpoint, slot) })
	err = c.Run(ctx, func(n int) (string, any) { return items[n].Key, &items[n].In })
	c.box.giveUp(err)
	return results, err
}

// take reads the answer.
func (r *CallResult[Out]) take(endpoint string, slot wire.Slot) {
	if slot.Err != nil {
		r.Err = slot.Err
		return
	}
	err := decodeAnswer(slot, &r.Out)
	if err == nil {
		return
	}
	var none Out
	r.Out = none
	detail := wire.PayloadError(err, reflect.TypeFor[Out]()).Message
	if slot.ContentType != "" {
		detail = fmt.Sprintf("%v, which does not fit %v", err, reflect.TypeFor[Out]())
	}
	r.Err = wire.NewSlotError(wire.CodeBadAnswer, fmt.Sprintf("the answer of %s: %s", endpoint, detail), false)
}
