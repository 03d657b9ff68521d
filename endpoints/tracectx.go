package endpoints

import "context"

type traceKey struct{}

// ContextWithTrace returns a context in which Call continues the trace t. A handler's context has that of its request.
func ContextWithTrace(ctx context.Context, t Trace) context.Context {
	return ContextWithTracer(ctx, func(context.Context) Trace { return t })
}

// ContextWithTracer is ContextWithTrace for a trace that is found in the context which Call gets: one made from ctx may
// carry a later span.
func ContextWithTracer(ctx context.Context, find func(context.Context) Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, find)
}

// TraceOf returns the trace that a context continues, or the zero Trace.
func TraceOf(ctx context.Context) Trace {
	if find, ok := ctx.Value(traceKey{}).(func(context.Context) Trace); ok {
		t := find(ctx)
		return ParseTrace(t.Parent, t.State)
	}
	if j := jobOf(ctx); j != nil {
		return TraceOfHeader(j.header)
	}
	return Trace{}
}
