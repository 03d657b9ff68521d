package endpoints

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Target is an endpoint that a flow queries: it takes a Query for an item and returns an Answer in the next stage.
// Targets hold no connection and are usually package variables.
//
// An Answer of type Binary accepts binary results and JSON, json.RawMessage any result unchanged.
type Target[Query, Answer any] struct {
	endpoint, name string
	keep           bool
}

// To returns the target of an endpoint. It panics if the name is invalid.
func To[Query, Answer any](endpoint string) Target[Query, Answer] {
	if err := wire.ValidateName(endpoint); err != nil {
		panic(fmt.Sprintf("endpoints.To: %v", err))
	}
	return Target[Query, Answer]{endpoint: endpoint, name: endpoint}
}

// As names the target, so that a stage can ask one endpoint two questions for an item. The name is part of the
// idempotency key that the endpoint sees. As panics if the name does not have the form of an endpoint name.
func (t Target[Query, Answer]) As(name string) Target[Query, Answer] {
	if err := wire.ValidateName(name); err != nil {
		panic(fmt.Sprintf("endpoints.Target.As: %v", err))
	}
	t.name = name
	return t
}

// KeepErrors returns a target whose errors do not fail the item. The next stage gets them from Err.
func (t Target[Query, Answer]) KeepErrors() Target[Query, Answer] {
	t.keep = true
	return t
}

// Ask asks the endpoint a question for an item. Requests are sent when the stage ends. An item may ask several
// targets in one stage; the next stage starts when all have answered. A second question to the same target for one
// item is dropped.
//
// The item fails if the query cannot be written as JSON, in the last stage (CodeNoNextStage), or if MaxStack
// endpoints already wait for one another (CodeStackTooDeep).
func (t Target[Query, Answer]) Ask(item Flowing, query Query) {
	item.flowing().Ask(t.name, t.endpoint, t.keep, &query)
}

// Asked reports whether the previous stage asked the target for the item.
func (t Target[Query, Answer]) Asked(item Flowing) bool {
	_, asked := item.flowing().Answer(t.name)
	return asked
}

// Err returns the error that answered the item's question, or nil if it succeeded or was not asked. Only targets with
// KeepErrors return errors.
func (t Target[Query, Answer]) Err(item Flowing) *wire.SlotError {
	slot, _ := item.flowing().Answer(t.name)
	return slot.Err
}

// Answer returns the endpoint's answer to the previous stage's question. It is the zero value if there was none or
// Err is not nil. An answer that does not fit the type fails the item with CodeBadAnswer; later answers to the item
// are dropped.
//
// Only the next stage sees the answer. Keep what later stages need in State.
func (t Target[Query, Answer]) Answer(item Flowing) (answer Answer) {
	i := item.flowing()
	slot, asked := i.Answer(t.name)
	if !asked || slot.Err != nil {
		return answer
	}
	if err := decodeAnswer(slot, &answer); err != nil {
		i.Spoilt(t.name, wire.PayloadError(err, reflect.TypeFor[Answer]()))
		var none Answer
		return none
	}
	return answer
}

func decodeAnswer(slot wire.Slot, answer any) error {
	switch to := answer.(type) {
	case *wire.Binary:
		to.ContentType, to.Data = slot.ContentType, slot.Data
		to.ContentType = cmp.Or(to.ContentType, wire.ContentTypeJSON)
		return nil
	case *json.RawMessage:
		*to = slot.Data
		return nil
	case *jsontext.Value:
		*to = slot.Data
		return nil
	}
	if slot.ContentType != "" {
		return fmt.Errorf("it is binary, of type %s", slot.ContentType)
	}
	return wire.DecodePayload(slot.Data, answer)
}

type traceKey struct{}

// ContextWithTrace returns a context in which Call continues trace t. Handlers' contexts continue the request's.
func ContextWithTrace(ctx context.Context, t wire.Trace) context.Context {
	return ContextWithTracer(ctx, func(context.Context) wire.Trace { return t })
}

// ContextWithTracer is like ContextWithTrace, but gets the trace from the context passed to Call, which may hold a
// later span.
func ContextWithTracer(ctx context.Context, find func(context.Context) wire.Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, find)
}

// TraceOf returns the trace of a context, or the zero Trace.
func TraceOf(ctx context.Context) wire.Trace {
	if find, ok := ctx.Value(traceKey{}).(func(context.Context) wire.Trace); ok {
		t := find(ctx)
		return wire.ParseTrace(t.Parent, t.State)
	}
	if j := serve.JobOf(ctx); j != nil {
		return wire.TraceOfHeader(j.Header)
	}
	return wire.Trace{}
}
