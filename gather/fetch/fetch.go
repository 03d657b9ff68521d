// Package fetch is what a node asks to get the parts of a chunk: one call with the items, and a slot for each of them
// back. Steps of kind http and sql are such fetchers, and so is the Go code of a step of kind local.
//
// A program that embeds a node gives it its local functions by name. [Each] makes a fetcher of a function that
// composes one item; [Typed] one of a function with types of its own for the payload and the result; [Func] one of a
// function that takes the whole chunk, for a query that fetches what all of its items need.
//
// Guarantees: what a fetcher returns is held against what was asked. A slot for an item that was not asked for is not
// taken, of two slots for one item the first counts, and an item without a slot is retried: it is never a success.
// An error of the call speaks for the items without a slot. A panic in Each and Typed costs its item, with code
// wire.CodePanic, and a panic elsewhere the chunk.
//
// A call may be made more than once for the same item: a node that dies has its chunks fetched again by another. What
// must not happen twice is remembered under [Item.IdempotencyKey].
//
// Not its job: retries, pacing, limits, the database. The node does that, by slices, as for endpoints.
//
// Concurrency: a fetcher is called from several goroutines at once, one call for each chunk. It must end soon after its
// context: a call that does not is given up, and what it returns later is dropped; until then it keeps a worker.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Fetcher gets the parts of a chunk.
//
// The error speaks for the items without a slot; what came counts anyway. It may be one of wire.Fail or
// wire.Retry, which keep their code. A missing slot without an error means that no one knows: the item is tried
// again.
type Fetcher interface {
	Fetch(ctx context.Context, req *Request) ([]Slot, error)
}

// Func is a Fetcher that is a function.
type Func func(ctx context.Context, req *Request) ([]Slot, error)

// Fetch calls f.
func (f Func) Fetch(ctx context.Context, req *Request) ([]Slot, error) { return f(ctx, req) }

// Request is a chunk to be fetched. The fetcher may keep neither it nor what is in it after it has returned, but what
// it returns may share its memory.
type Request struct {
	Run        uuid.UUID
	Slice      uuid.UUID // the attempt; another try at the same items has another one
	Step       string    // the step's name
	StepNumber int       // its place in the run
	Attempt    int       // how often these items have been asked for, this time included
	Generation int       // of the run, from 1; a re-run has the next
	Params     map[string]string
	Items      []Item
	Rate       float64 // items a second that the step may ask for; 0: as many as it likes

	sink Sink
}

// Item is an item to be fetched.
type Item struct {
	Ordinal int
	Key     string
	Payload []byte          // JSON; nil when the item is no input of the step
	Parts   map[string]Part // what the steps it sees have made of the item; one of an optional step may be missing

	request *Request // set by Each and Typed
}

// Part is what a step has made of an item.
type Part struct {
	Data        []byte
	ContentType string // empty: JSON
}

// Slot is one item's place in what a fetcher returns: a result, or an error.
type Slot struct {
	Ordinal     int
	Data        []byte
	ContentType string          // empty: JSON
	Err         *wire.SlotError // nil with a result
}

// Decode reads a part that is JSON into v.
func (p Part) Decode(v any) error {
	if p.ContentType != "" {
		return fmt.Errorf("the part is %s; only JSON can be read into a value", p.ContentType)
	}
	return json.Unmarshal(p.Data, v)
}

// JSON returns a part of v as JSON.
func JSON(v any) (Part, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return Part{}, wire.Fail(wire.CodeBadResult, "the result cannot be written as JSON: %v", err)
	}
	return Part{Data: data}, nil
}

// Decode reads the item's payload into v. It fails when the item is no input of the step.
func (i *Item) Decode(v any) error {
	if i.Payload == nil {
		return wire.Fail(wire.CodeBadPayload, "the item is no input of the step; name it in the plan's inputs")
	}
	if err := json.Unmarshal(i.Payload, v); err != nil {
		return wire.Fail(wire.CodeBadPayload, "item %s: %v", i.Key, err)
	}
	return nil
}

// DecodePart reads the part of a step into v, and reports whether there is one: the part of an optional step may be
// missing. It fails when the part is not JSON or does not fit v.
func (i *Item) DecodePart(step string, v any) (there bool, err error) {
	part, there := i.Parts[step]
	if !there {
		return false, nil
	}
	if err := part.Decode(v); err != nil {
		return true, wire.Fail(wire.CodeBadPart, "part %s of item %s: %v", step, i.Key, err)
	}
	return true, nil
}

// Param returns a parameter of the run, or "" when it has none of that name. It works in functions of Each and Typed.
func (i *Item) Param(name string) string {
	if i.request == nil {
		return ""
	}
	return i.request.Params[name]
}

// Params returns a copy of the run's parameters, in functions of Each and Typed.
func (i *Item) Params() map[string]string {
	if i.request == nil {
		return nil
	}
	return maps.Clone(i.request.Params)
}

// IdempotencyKey is the same for every attempt at the item in one generation of its run, and differs after a re-run or
// a reset: it is that of an endpoint for the same item. It works in functions of Each and Typed.
func (i *Item) IdempotencyKey() string {
	if i.request == nil {
		return ""
	}
	r := i.request
	return fmt.Sprintf("%s/%d/%d/%d", r.Run, r.StepNumber, i.Ordinal, r.Generation)
}

// ErrorOf turns what a function returned into an error slot. One of wire.Fail or wire.Retry keeps its code,
// the end of a context is wire.CodeTimeout and may pass, and any other has code wire.CodeHandlerError and may
// pass as retry says. Codes and messages of any make are cut to what is allowed.
func ErrorOf(err error, retry bool) *wire.SlotError {
	slot, ok := errors.AsType[*wire.SlotError](err)
	switch {
	case ok:
		message := slot.Message
		if err.Error() != slot.Error() { // wrapped: what was added around it is worth reading
			message = err.Error()
		}
		return clean(slot.Code, message, slot.Retry)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return clean(wire.CodeTimeout, err.Error(), true)
	default:
		return clean(wire.CodeHandlerError, err.Error(), retry)
	}
}

// Clean returns an error slot whose code and message are such as are allowed.
func Clean(e *wire.SlotError) *wire.SlotError { return clean(e.Code, e.Message, e.Retry) }

func clean(code, message string, retry bool) *wire.SlotError {
	of := wire.Fail
	if retry {
		of = wire.Retry
	}
	slot, _ := errors.AsType[*wire.SlotError](of(code, "%s", message)) // it is one
	return slot
}

// cut reports whether an error comes from the end of ctx.
func cut(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// Sink takes slots while their chunk is still at work, so that what is done is not held in memory, nor lost when the
// rest does not end. Nodes implement it.
type Sink interface {
	// Begin says which item the fetcher is at, for the case that it never comes back.
	Begin(ordinal int)
	// Worked says how long a host or source took for a request, without the waits before it.
	Worked(took time.Duration)
	// Take takes a slot, which must not be returned as well. It may wait until there is room.
	Take(slot Slot)
}

// WithSink sets where the slots of a request go early. It returns the request.
func (r *Request) WithSink(sink Sink) *Request {
	r.sink = sink
	return r
}

// Emit hands a slot over while other items are still at work, which keeps large results from piling up. It returns
// false when no one takes it: then the slot is to be returned with the others. It may be called from several goroutines
// at once, and not after the fetcher has returned.
func (r *Request) Emit(slot Slot) bool {
	if r.sink == nil {
		return false
	}
	r.sink.Take(slot)
	return true
}

// Worked says how long a host or source took for one of the requests for a chunk, without what the fetcher waited
// for: a rate, a turn, a connection. It may be called from several goroutines at once.
func (r *Request) Worked(took time.Duration) {
	if r.sink != nil {
		r.sink.Worked(took)
	}
}

func (r *Request) begin(ordinal int) {
	if r.sink != nil {
		r.sink.Begin(ordinal)
	}
}

// Each makes a fetcher of a function that makes one item's part. It is called for one item of a chunk after the other;
// a node works on several chunks at once. An error is the item's: one of wire.Fail and wire.Retry keeps its
// code, any other has code wire.CodeHandlerError and is not retried. A panic is an error, too.
//
// When the context ends, the items that are left stay without a slot.
func Each(f func(ctx context.Context, item *Item) (Part, error)) Fetcher {
	return Func(func(ctx context.Context, req *Request) ([]Slot, error) {
		var slots []Slot
		for n := range req.Items {
			if ctx.Err() != nil {
				return slots, context.Cause(ctx)
			}
			item := &req.Items[n]
			item.request = req
			req.begin(item.Ordinal)
			part, err := guarded(ctx, item, f)
			slot := Slot{Ordinal: item.Ordinal, Data: part.Data, ContentType: part.ContentType}
			switch {
			case err == nil:
			case cut(ctx, err): // it was not the item that failed
				return slots, context.Cause(ctx)
			default:
				slot = Slot{Ordinal: item.Ordinal, Err: ErrorOf(err, false)}
			}
			if !req.Emit(slot) {
				slots = append(slots, slot)
			}
		}
		return slots, nil
	})
}

// Typed makes a fetcher of a function from the item's payload to a result, which is written as JSON unless it is a Part
// or an wire.Binary. A payload that does not fit In is the item's error, with code wire.CodeBadPayload. When
// the item is no input of the step, in is the zero value.
func Typed[In, Out any](f func(ctx context.Context, in In, item *Item) (Out, error)) Fetcher {
	return Each(func(ctx context.Context, item *Item) (Part, error) {
		var in In
		if item.Payload != nil {
			if err := json.Unmarshal(item.Payload, &in); err != nil {
				return Part{}, wire.Fail(wire.CodeBadPayload, "the payload does not fit %T: %v", in, err)
			}
		}
		out, err := f(ctx, in, item)
		if err != nil {
			return Part{}, err
		}
		switch result := any(out).(type) {
		case Part:
			return result, nil
		case wire.Binary:
			return binary(result), nil
		case *wire.Binary:
			return binary(*result), nil
		default:
			return JSON(out)
		}
	})
}

func binary(b wire.Binary) Part {
	if b.ContentType == "" {
		b.ContentType = wire.DefaultBinaryType
	}
	return Part{Data: b.Data, ContentType: b.ContentType}
}

// Panic is a panic of a function, for the log. What becomes of it in the run is an error without the stack.
type Panic struct {
	Ordinal int // of the item; -1: of the chunk
	Value   any
	Stack   []byte
}

type panicKey struct{}

// ReportPanics returns a context by which Each and Typed tell of panics. Nodes use it.
func ReportPanics(ctx context.Context, report func(Panic)) context.Context {
	return context.WithValue(ctx, panicKey{}, report)
}

// guarded calls a function for one item and turns a panic into an error.
func guarded(ctx context.Context, item *Item, f func(context.Context, *Item) (Part, error)) (part Part, err error) {
	defer func() {
		value := recover()
		if value == nil {
			return
		}
		if report, ok := ctx.Value(panicKey{}).(func(Panic)); ok {
			report(Panic{item.Ordinal, value, debug.Stack()})
		}
		part, err = Part{}, wire.Fail(wire.CodePanic, "the function panicked: %v", value)
	}()
	return f(ctx, item)
}

// Guard calls a fetcher and turns a panic into an error of the chunk, which is retried.
func Guard(ctx context.Context, f Fetcher, req *Request) (slots []Slot, err error) {
	defer func() {
		value := recover()
		if value == nil {
			return
		}
		if report, ok := ctx.Value(panicKey{}).(func(Panic)); ok {
			report(Panic{-1, value, debug.Stack()})
		}
		slots, err = nil, wire.Retry(wire.CodePanic, "step %s panicked: %v", req.Step, value)
	}()
	return f.Fetch(ctx, req)
}
