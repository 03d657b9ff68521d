// Package fetch defines fetchers, which produce the parts of a chunk: a node calls one with the items and gets a slot
// for each. Steps of kind http and sql are fetchers, as is the Go code of local steps.
//
// A program that embeds a node registers local functions by name. [Each] makes a fetcher from a function for one
// item, [Typed] from one with typed payload and result, and [Func] from one for the whole chunk, so that one query
// can fetch the data of all items.
//
// The node checks what a fetcher returns: it ignores slots of items not requested and repeated slots, and retries
// items without a slot. An error of the call applies to items without a slot. A panic in Each or Typed fails its item
// with wire.CodePanic, elsewhere the chunk.
//
// A call may be repeated for the same item, for example after a node dies. To make an effect happen once, use
// [Item.IdempotencyKey]. The node does retries, pacing and limits.
//
// A fetcher is called concurrently, once per chunk. It must return soon after its context ends: otherwise the call is
// abandoned and its results are dropped, but it occupies a worker until it returns.
package fetch

import (
	"cmp"
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

// Fetcher produces the parts of a chunk. Returned slots count even with an error. The error applies to items without
// a slot; one made by wire.Fail or wire.Retry keeps its code. Without an error, items without a slot are retried.
type Fetcher interface {
	Fetch(ctx context.Context, req *Request) ([]Slot, error)
}

// Func is a function that implements Fetcher.
type Func func(ctx context.Context, req *Request) ([]Slot, error)

// Fetch calls f.
func (f Func) Fetch(ctx context.Context, req *Request) ([]Slot, error) { return f(ctx, req) }

// Request is a chunk to fetch. The fetcher must not use it or its contents after it returns, but returned slots may
// share its memory.
type Request struct {
	Run        uuid.UUID
	Slice      uuid.UUID // the attempt; a retry has another one
	Step       string    // the step's name
	StepNumber int       // its position in the run
	Attempt    int       // attempts at these items, including this one
	Generation int       // of the run, from 1; a rerun increments it
	Params     map[string]string
	Items      []Item
	Rate       float64 // items per second allowed for the step; 0: unlimited

	sink Sink
}

// Item is an item to fetch.
type Item struct {
	Ordinal int
	Key     string
	Payload []byte          // JSON; nil if the item is not an input of the step
	Parts   map[string]Part // results of the step's inputs; those of optional steps may be missing

	request *Request // set by Each and Typed
}

// Part is a step's result for an item.
type Part struct {
	Data        []byte
	ContentType string // empty for JSON
}

// Slot is one item's result or error.
type Slot struct {
	Ordinal     int
	Data        []byte
	ContentType string          // empty for JSON
	Err         *wire.SlotError // nil with a result
}

// Decode decodes a JSON part into v.
func (p Part) Decode(v any) error {
	if p.ContentType != "" {
		return fmt.Errorf("the part is %s; only JSON can be read into a value", p.ContentType)
	}
	return json.Unmarshal(p.Data, v)
}

// JSON encodes v as a part.
func JSON(v any) (Part, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return Part{}, wire.Fail(wire.CodeBadResult, "the result cannot be written as JSON: %v", err)
	}
	return Part{Data: data}, nil
}

// Decode decodes the payload into v. It fails if the item is not an input of the step.
func (i *Item) Decode(v any) error {
	if i.Payload == nil {
		return wire.Fail(wire.CodeBadPayload, "the item is not an input of the step; name it in the plan's inputs")
	}
	if err := json.Unmarshal(i.Payload, v); err != nil {
		return wire.Fail(wire.CodeBadPayload, "item %s: %v", i.Key, err)
	}
	return nil
}

// DecodePart decodes the named step's part into v and reports whether it exists; that of an optional step may be
// missing. It fails if the part is not JSON or does not fit v.
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

// Param returns a run parameter, or "" if it is not set. Use it in functions of Each and Typed.
func (i *Item) Param(name string) string {
	if i.request == nil {
		return ""
	}
	return i.request.Params[name]
}

// Params returns a copy of the run's parameters. Use it in functions of Each and Typed.
func (i *Item) Params() map[string]string {
	if i.request == nil {
		return nil
	}
	return maps.Clone(i.request.Params)
}

// IdempotencyKey is the same for every attempt at the item in one generation of its run, and changes after a rerun or
// reset. It equals the key at an endpoint. Use it in functions of Each and Typed.
func (i *Item) IdempotencyKey() string {
	if i.request == nil {
		return ""
	}
	r := i.request
	return wire.Meta{Run: r.Run, Step: r.StepNumber, Generation: r.Generation}.IdempotencyKey(i.Ordinal, i.Key)
}

// ErrorOf converts an error to that of a slot. One made by wire.Fail or wire.Retry keeps its code, the end of a
// context becomes a retryable wire.CodeTimeout, and any other wire.CodeHandlerError, retryable if retry is set. Codes
// and messages are cut to their limits.
func ErrorOf(err error, retry bool) *wire.SlotError {
	slot, ok := errors.AsType[*wire.SlotError](err)
	switch {
	case ok:
		message := slot.Message
		if err.Error() != slot.Error() { // the wrapping adds context
			message = err.Error()
		}
		return wire.NewSlotError(slot.Code, message, slot.Retry)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return wire.NewSlotError(wire.CodeTimeout, err.Error(), true)
	default:
		return wire.NewSlotError(wire.CodeHandlerError, err.Error(), retry)
	}
}

// Clean returns the error with code and message cut to their limits.
func Clean(e *wire.SlotError) *wire.SlotError { return wire.NewSlotError(e.Code, e.Message, e.Retry) }

// Sink receives slots early, so that they use no memory and are not lost if the rest fails. Nodes implement it.
type Sink interface {
	// Begin reports the item that is started, in case the fetcher never returns.
	Begin(ordinal int)
	// Worked reports the time a host or source took for a request, without waits before it.
	Worked(took time.Duration)
	// Take receives a slot, which must not also be returned. It may block.
	Take(slot Slot)
}

// WithSink sets the receiver of early slots and returns r.
func (r *Request) WithSink(sink Sink) *Request {
	r.sink = sink
	return r
}

// Emit delivers a slot early, which limits the memory for large results. It returns false if there is no sink; then
// return the slot with the rest. It is safe for concurrent use until the fetcher returns.
func (r *Request) Emit(slot Slot) bool {
	if r.sink == nil {
		return false
	}
	r.sink.Take(slot)
	return true
}

// Worked reports how long a host or source took for a request, without waits for a rate, slot or connection. It is
// safe for concurrent use.
func (r *Request) Worked(took time.Duration) {
	if r.sink != nil {
		r.sink.Worked(took)
	}
}

// Each makes a fetcher from a function for one item. It is called for one item of a chunk at a time, but for several
// chunks concurrently. Errors apply to the item: one made by wire.Fail or wire.Retry keeps its code, any other is a
// permanent wire.CodeHandlerError. A panic is an error too. When the context ends, remaining items get no slot.
func Each(f func(ctx context.Context, item *Item) (Part, error)) Fetcher {
	return Func(func(ctx context.Context, req *Request) ([]Slot, error) {
		var slots []Slot
		for n := range req.Items {
			if ctx.Err() != nil {
				return slots, context.Cause(ctx)
			}
			item := &req.Items[n]
			item.request = req
			if req.sink != nil {
				req.sink.Begin(item.Ordinal)
			}
			part, err := guarded(ctx, item, f)
			slot := Slot{Ordinal: item.Ordinal, Data: part.Data, ContentType: part.ContentType}
			switch {
			case err == nil:
			case wire.IsCut(ctx, err): // not the item's failure
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

// Typed makes a fetcher from a typed function. The result is encoded as JSON unless it is a Part or wire.Binary. A
// payload that does not fit In fails the item with wire.CodeBadPayload. If the item is not an input of the step, in
// is zero.
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
	b.ContentType = cmp.Or(b.ContentType, wire.DefaultBinaryType)
	return Part{Data: b.Data, ContentType: b.ContentType}
}

// Panic is a recovered panic, for the log. Errors in the run have no stack.
type Panic struct {
	Ordinal int // of the item; -1 for the chunk
	Value   any
	Stack   []byte
}

type panicKey struct{}

// ReportPanics returns a context in which Each and Typed report panics. Nodes use it.
func ReportPanics(ctx context.Context, report func(Panic)) context.Context {
	return context.WithValue(ctx, panicKey{}, report)
}

func reportPanic(ctx context.Context, ordinal int, value any) {
	if report, ok := ctx.Value(panicKey{}).(func(Panic)); ok {
		report(Panic{ordinal, value, debug.Stack()})
	}
}

// guarded calls a function for one item and converts a panic to an error.
func guarded(ctx context.Context, item *Item, f func(context.Context, *Item) (Part, error)) (part Part, err error) {
	defer func() {
		if value := recover(); value != nil {
			reportPanic(ctx, item.Ordinal, value)
			part, err = Part{}, wire.Fail(wire.CodePanic, "the function panicked: %v", value)
		}
	}()
	return f(ctx, item)
}

// Guard calls a fetcher and converts a panic to a retryable error of the chunk.
func Guard(ctx context.Context, f Fetcher, req *Request) (slots []Slot, err error) {
	defer func() {
		if value := recover(); value != nil {
			reportPanic(ctx, -1, value)
			slots, err = nil, wire.Retry(wire.CodePanic, "step %s panicked: %v", req.Step, value)
		}
	}()
	return f.Fetch(ctx, req)
}
