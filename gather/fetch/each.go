package fetch

import (
	"context"
	"runtime/debug"

	"github.com/go-json-experiment/json"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Each makes a fetcher of a function that makes one item's part. It is called for one item of a chunk after the other;
// a node works on several chunks at once. An error is the item's: one of wire.Fail and wire.Retry keeps its
// code, any other has code wire.CodeHandlerError and is not tried again. A panic is an error, too.
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

// Guard calls a fetcher and turns a panic into an error of the chunk, which is tried again.
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
