package fetch

import (
	"context"
	"fmt"
	"maps"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Fetcher gets the parts of a chunk.
//
// The error speaks for the items without a slot; what came counts all the same. It may be one of wire.Fail or
// wire.Retry, which keep their code. A missing slot without an error means that nobody knows: the item is tried
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
