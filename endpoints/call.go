package endpoints

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

// DefaultCallTimeout is the timeout of a call whose context has no deadline.
const DefaultCallTimeout = 30 * time.Second

// CallItem is one item of a CallList. Key identifies it in handlers and logs; keys need not be unique.
type CallItem[In any] struct {
	Key string
	In  In
}

// CallResult is the outcome of one item of a CallList: Out, or Err.
type CallResult[Out any] struct {
	Key string
	Out Out
	Err *wire.SlotError
}

// CallOption configures Call and CallList.
type CallOption func(*callOptions)

type callOptions struct {
	direct bool
	caller string
	origin string
	params map[string]string
}

// Direct sends the call over core NATS: it is neither persisted nor redelivered, and fails immediately if no service
// listens. Without it, the request waits in a stream until a service takes it or the deadline passes.
func Direct() CallOption { return func(o *callOptions) { o.direct = true } }

// CallerName sets the caller's name, which has the form of an endpoint name. Answers arrive on the subject
// tranche.call.<name>.>, so NATS permissions are granted by it. The default is the endpoint whose handler makes the
// call, or "caller".
func CallerName(name string) CallOption { return func(o *callOptions) { o.caller = name } }

// CallParams sets parameters that handlers read with Param, at most 16 KiB in all.
func CallParams(params map[string]string) CallOption {
	return func(o *callOptions) { o.params = params }
}

// CallOrigin names the original requester; it is shown in dead letters and cut to 256 bytes. The default is the
// origin of the request whose handler makes the call.
func CallOrigin(origin string) CallOption { return func(o *callOptions) { o.origin = origin } }

// Call sends one item to an endpoint and waits for the answer until ctx ends, or for 30 s if ctx has no deadline.
// With Out = Binary it accepts binary results, with json.RawMessage any result.
//
// The error is a *SlotError if the service answered with an error; its Retry field says whether a retry may help. If
// there is no answer, it is a *NoListenersError (with Direct), *PermissionError, *RequestError, *BadReplyError or
// *UnansweredError; the last also matches context.DeadlineExceeded or context.Canceled. Without an answer, the
// request may have been processed anyway.
//
// The request has mode single: retryable failures are retried until the deadline, and a failure that the handler did
// not choose with Fail or Retry is saved as a dead letter. Direct does neither. Each call is a separate run, so
// handlers see a new idempotency key each time.
//
// A handler may use Call. A chain of more than wire.MaxStack endpoints waiting for one another fails with
// CodeStackTooDeep. HandleFlow avoids waiting.
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

// CallList sends items to an endpoint, in as many requests as needed, and waits for all answers like Call. Results
// are in the order of items and hold the errors of items and chunks.
//
// The error is as for Call, but never a *SlotError except CodeStackTooDeep. Results received before the error are
// returned unless the call could not start; the other items have the error CodeUnanswered.
//
// Requests have mode batch: errors are returned after the first attempt, and there are no dead letters.
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

const (
	// callBacklog bounds the bytes of answers received but not yet read.
	callBacklog   = 128 << 20
	maxParams     = 16 << 10
	defaultCaller = "caller"
)

type call struct {
	nc       *nats.Conn
	js       jetstream.JetStream // nil with Direct
	endpoint string
	meta     wire.Meta // of its requests; Slice is set for each
	trace    nats.Header
	params   []byte
	ttl      string
	lane     bool // the endpoint reads calls apart from chunks
	box      *answerBox
}

func newCall(ctx context.Context, nc *nats.Conn, endpoint string, mode wire.Mode, opts []CallOption) (*call, error) {
	var o callOptions
	for _, set := range opts {
		set(&o)
	}
	if err := wire.ValidateName(endpoint); err != nil {
		return nil, fmt.Errorf("call: %w", err)
	}
	c := &call{nc: nc, endpoint: endpoint, trace: nats.Header{}}
	TraceOf(ctx).SetHeader(c.trace)
	if err := c.introduce(serve.JobOf(ctx), mode, o); err != nil {
		return nil, fmt.Errorf("call endpoint %s: %w", endpoint, err)
	}
	if len(o.params) > 0 {
		var err error
		if c.params, err = json.Marshal(o.params, json.Deterministic(true)); err != nil {
			return nil, fmt.Errorf("call endpoint %s: parameters: %w", endpoint, err)
		}
		if len(c.params) > maxParams {
			return nil, fmt.Errorf("call endpoint %s: the parameters take %d bytes; %d are allowed", endpoint, len(c.params),
				maxParams)
		}
	}
	if deadline, ok := ctx.Deadline(); ok {
		c.ttl = wire.TTLHeader(time.Until(deadline))
	}
	if o.direct {
		return c, nil
	}
	var err error
	if c.js, err = jetstream.New(nc); err != nil {
		return nil, fmt.Errorf("call endpoint %s: %w", endpoint, err)
	}
	c.lane = mode == wire.ModeSingle && stream.HasLane(ctx, nc, endpoint)
	return c, nil
}

// introduce sets the caller, and what the request inherits if the caller is a handler.
func (c *call) introduce(from *serve.Job, mode wire.Mode, o callOptions) error {
	c.meta = wire.Meta{Run: uuid.New(), Attempt: 1, Generation: 1, Mode: mode, Origin: o.origin}
	caller := defaultCaller
	if from != nil {
		caller = from.Endpoint
		c.meta.Stack = from.Request.Stack.Push(from.Endpoint, 0)
		c.meta.Root = from.Request.Root
		if o.origin == "" {
			c.meta.Origin = from.Request.Origin
		}
	}
	if o.caller != "" {
		caller = o.caller
	}
	if err := wire.ValidateName(caller); err != nil {
		return fmt.Errorf("CallerName: %w", err)
	}
	if c.meta.Stack.Depth() > wire.MaxStack {
		return wire.NewSlotError(wire.CodeStackTooDeep,
			fmt.Sprintf("more than %d endpoints would wait for one another; is there a "+
				"circle? %s", wire.MaxStack, c.meta.Stack), false)
	}
	c.meta.ReplyTo = wire.Return{Asker: caller, Callee: c.endpoint, Call: nuid.Next()}
	return nil
}

// Run sends all items and returns nil once all are answered. item returns a key, and a pointer to the payload.
func (c *call) Run(ctx context.Context, item func(n int) (key string, payload any)) error {
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.box.begin(cancel)
	answersTo := c.meta.ReplyTo.String()
	unwatch := c.watch(answersTo, cancel)
	defer unwatch()
	sub, err := c.nc.Subscribe(answersTo, c.box.receive)
	if err == nil {
		err = sub.SetPendingLimits(-1, callBacklog)
	}
	if err != nil {
		return fmt.Errorf("call endpoint %s: %w", c.endpoint, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // drop later answers
	var publishing errgroup.Group
	c.publishAll(asking, &publishing, cancel, item)
	select {
	case <-c.box.done:
	case <-asking.Done():
	}
	cancel(nil)
	answered := c.box.close()
	refused := publishing.Wait()
	if answered == len(c.box.answered) {
		return nil
	}
	if refused != nil {
		return refused
	}
	if cause := context.Cause(asking); ctx.Err() == nil || isCallError(cause) {
		return cause
	}
	dropped, _ := sub.Dropped()
	return &UnansweredError{Endpoint: c.endpoint, Items: len(c.box.answered), Answered: answered, Dropped: dropped,
		Err: ctx.Err(), Cause: context.Cause(ctx)}
}

// watch ends the call when NATS denies a permission that it needs, rather than at its deadline.
func (c *call) watch(answersTo string, cancel context.CancelCauseFunc) (end func()) {
	request := c.subject()
	return stream.PermissionsOf(c.nc).Await(&stream.Watcher{
		Concerns: func(e *stream.PermissionError, subject string) bool {
			return e.Op == stream.OpSubscribe && subject == answersTo || e.Op == stream.OpPublish && subject == request
		},
		Tell: func(e *stream.PermissionError) { cancel(fmt.Errorf("call endpoint %s: %w", c.endpoint, e)) },
	}, nil)
}

func (c *call) subject() string {
	if c.js == nil {
		return wire.DirectSubject(c.endpoint)
	}
	if c.lane {
		return wire.WorkSubject(wire.LaneOf(c.endpoint))
	}
	return wire.WorkSubject(c.endpoint)
}

const (
	// callWindow is how many requests of a call may be unanswered. directWindow is that over core NATS, where an
	// overloaded service answers with an error.
	callWindow   = 16
	directWindow = 4
	// missingTimeout is how long a stream may be missing. Nodes recreate a lost one immediately.
	missingTimeout = time.Second
)

// publishAll cuts the items into requests and publishes them concurrently. It may return before they are published.
func (c *call) publishAll(
	ctx context.Context, group *errgroup.Group, cancel context.CancelCauseFunc, item func(n int) (string, any),
) {
	size := callWindow
	if c.js == nil {
		size = directWindow
	}
	window := make(chan struct{}, size)
	var payload bytes.Buffer
	for n, items := 0, len(c.box.answered); n < items; {
		select {
		case window <- struct{}{}:
		case <-ctx.Done():
			return
		}
		first := n
		var msg *nats.Msg
		var slice uuid.UUID
		msg, slice, n = c.cut(n, items, &payload, item)
		if msg == nil { // none of its items can be sent
			<-window
			continue
		}
		c.box.expect(slice, first, n, func() { <-window })
		group.Go(func() error {
			err := c.publish(ctx, msg)
			if err != nil {
				cancel(err)
			}
			return err
		})
	}
}

// cut builds one request from the items starting with n, and returns the first item not in it. Items that cannot be
// sent are answered with an error; msg is nil if none remains.
func (c *call) cut(
	n, items int, payload *bytes.Buffer, item func(n int) (string, any),
) (msg *nats.Msg, slice uuid.UUID, next int) {
	meta := c.meta
	meta.Slice = uuid.New()
	b := wire.NewRequestBuilder(c.endpoint, meta, int(c.nc.MaxPayload())-wire.HeaderSize(c.trace))
	b.SetParams(c.params)
	for ; n < items && b.Len() < bitfield.Size; n++ {
		key, in := item(n)
		payload.Reset()
		if err := wire.EncodePayload(payload, in); err != nil {
			c.box.fail(n, wire.NewSlotError(wire.CodeBadQuery,
				fmt.Sprintf("the question to %s cannot be written: %v", c.endpoint, err),
				false))
			continue
		}
		if b.Add(n, key, payload.Bytes()) {
			continue
		}
		if b.Len() > 0 {
			break
		}
		c.box.fail(n, wire.NewSlotError(wire.CodeQueryTooLarge,
			fmt.Sprintf("the question to %s takes %d bytes, which does not fit a "+
				"message; raise the NATS server's max_payload (16 MiB count) or ask with where the data is", c.endpoint,
				payload.Len()), false))
	}
	if b.Len() == 0 {
		return nil, meta.Slice, n
	}
	return c.message(b), meta.Slice, n
}

func (c *call) message(b *wire.RequestBuilder) *nats.Msg {
	msg := b.Msg()
	maps.Copy(msg.Header, c.trace)
	msg.Subject = c.subject()
	if c.js == nil {
		msg.Reply = c.meta.ReplyTo.String() // where the server reports that there are no responders
		return msg
	}
	msg.Header[wire.HeaderTTL] = []string{c.ttl} // drop requests of callers that have gone
	return msg
}

// publish publishes a request, through JetStream under one message ID until it is acknowledged.
func (c *call) publish(ctx context.Context, msg *nats.Msg) error {
	if c.js == nil {
		if err := c.nc.PublishMsg(msg); err != nil {
			return fmt.Errorf("call endpoint %s: %w", c.endpoint, err)
		}
		return nil
	}
	var last error // more specific than a timeout
	begun := time.Now()
	pauses := backoff.Exponential{First: serve.FirstPause, Longest: serve.LongestPause}
	for {
		err := c.try(ctx, msg)
		if err == nil || errors.Is(ctx.Err(), context.Canceled) { // the call ended
			return nil
		}
		if last == nil || ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		switch {
		case stream.Denied(err):
			return fmt.Errorf("call endpoint %s: %w", c.endpoint, err)
		case !mayBeTaken(err, time.Since(begun)) || pauses.Wait(ctx) != nil:
			return &RequestError{Endpoint: c.endpoint, Stream: wire.StreamWork, Err: last}
		}
	}
}

func (c *call) try(ctx context.Context, msg *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, stream.AckTimeout)
	defer cancel()
	return stream.During(ctx, c.nc, func(ctx context.Context) error {
		_, err := c.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
		return err
	}, msg.Subject)
}

// mayBeTaken reports whether retrying a refused publish may succeed.
func mayBeTaken(err error, tried time.Duration) bool {
	var api *jetstream.APIError
	switch {
	case serve.Hopeless(err):
		return false
	case serve.IsMissing(err):
		return tried < missingTimeout
	case errors.As(err, &api):
		return api.ErrorCode == serve.StreamFull || api.Code == 503
	default: // no acknowledgement came
		return true
	}
}
