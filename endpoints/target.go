package endpoints

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Target is an endpoint that flows ask: with a Query for an item, to be answered with an Answer in the next stage. It
// is a value without a connection; a package usually has its targets as variables.
//
// With Binary as Answer, binary results can be read, and JSON too; json.RawMessage takes either as it is.
type Target[Query, Answer any] struct {
	endpoint, name string
	keep           bool
}

// To returns the target of an endpoint. It panics when the name cannot be an endpoint's.
func To[Query, Answer any](endpoint string) Target[Query, Answer] {
	if err := wire.ValidateName(endpoint); err != nil {
		panic(fmt.Sprintf("endpoints.To: %v", err))
	}
	return Target[Query, Answer]{endpoint: endpoint, name: endpoint}
}

// As gives the target a name, so that one stage can ask an endpoint two things for one item. It panics when the name is
// not of an endpoint's form. The name belongs to the idempotency key that the endpoint sees: two questions to one
// endpoint are two things to do.
func (t Target[Query, Answer]) As(name string) Target[Query, Answer] {
	if err := wire.ValidateName(name); err != nil {
		panic(fmt.Sprintf("endpoints.Target.As: %v", err))
	}
	t.name = name
	return t
}

// KeepErrors returns a target whose errors do not fail the item: the next stage sees the item, and Err tells.
func (t Target[Query, Answer]) KeepErrors() Target[Query, Answer] {
	t.keep = true
	return t
}

// Ask asks the endpoint for an item. The request goes out when the stage has ended. An item may ask several targets in
// one stage; the next stage begins when all have answered. A second question to the same target for one item is
// dropped.
//
// A query that cannot be written as JSON fails the item, and so does one in the last stage (CodeNoNextStage), or where
// MaxStack endpoints wait for one another already (CodeStackTooDeep).
func (t Target[Query, Answer]) Ask(item Flowing, query Query) {
	item.flowing().Ask(t.name, t.endpoint, t.keep, &query)
}

// Asked reports whether the stage before has asked the target for the item.
func (t Target[Query, Answer]) Asked(item Flowing) bool {
	_, asked := item.flowing().Answer(t.name)
	return asked
}

// Err returns the error that answers the item, or nil when there is a result, or nothing was asked. Only a target with
// KeepErrors can return one.
func (t Target[Query, Answer]) Err(item Flowing) *wire.SlotError {
	slot, _ := item.flowing().Answer(t.name)
	return slot.Err
}

// Answer returns what the endpoint has answered to what the stage before has asked for the item. It is the zero value
// when nothing was asked, or Err tells why there is none. An answer that does not fit the type fails the item with
// CodeBadAnswer; what the handler then does with it is dropped.
//
// It is there in the stage after the question only: what later ones need is put into the State.
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

// decodeAnswer reads a slot into a Target's Answer.
func decodeAnswer(slot wire.Slot, answer any) error {
	switch to := answer.(type) {
	case *wire.Binary:
		to.ContentType, to.Data = slot.ContentType, slot.Data
		if to.ContentType == "" {
			to.ContentType = wire.ContentTypeJSON
		}
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

// ContextWithTrace returns a context in which Call continues the trace t. A handler's context has that of its request.
func ContextWithTrace(ctx context.Context, t wire.Trace) context.Context {
	return ContextWithTracer(ctx, func(context.Context) wire.Trace { return t })
}

// ContextWithTracer is ContextWithTrace for a trace that is found in the context which Call gets: one made from ctx may
// carry a later span.
func ContextWithTracer(ctx context.Context, find func(context.Context) wire.Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, find)
}

// TraceOf returns the trace that a context continues, or the zero Trace.
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
