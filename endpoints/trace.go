package endpoints

import (
	"context"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

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
