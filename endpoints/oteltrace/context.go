package oteltrace

import (
	"context"
	"encoding/hex"

	"go.opentelemetry.io/otel/trace"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Context returns a context in which endpoints.Call continues the span that ctx, or a context made from the returned
// one, carries: for callers that are not handlers, such as an HTTP server.
func Context(ctx context.Context) context.Context { return endpoints.ContextWithTracer(ctx, Inject) }

// Inject returns the trace context of the span that ctx carries, or the zero Trace.
func Inject(ctx context.Context) wire.Trace {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return wire.Trace{}
	}
	traceID, spanID := span.TraceID(), span.SpanID()
	b := make([]byte, 0, 55)
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, traceID[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, spanID[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, []byte{byte(span.TraceFlags()) & flagsKnown})
	return wire.ParseTrace(string(b), span.TraceState().String())
}

// flagsKnown is the flags that version 00 knows: sampled, and random ids.
const flagsKnown = 0x03

// Extract returns a context in which a span that is started is a child of the one that a trace context names. The zero
// Trace leaves ctx as it is.
func Extract(ctx context.Context, t wire.Trace) context.Context {
	t = wire.ParseTrace(t.Parent, t.State)
	if t.IsZero() {
		return ctx
	}
	var config trace.SpanContextConfig
	var flags [1]byte
	// ParseTrace has seen to it that these are hexadecimal.
	_, _ = hex.Decode(config.TraceID[:], []byte(t.Parent[3:35]))
	_, _ = hex.Decode(config.SpanID[:], []byte(t.Parent[36:52]))
	_, _ = hex.Decode(flags[:], []byte(t.Parent[53:55]))
	config.TraceFlags = trace.TraceFlags(flags[0] & flagsKnown)
	config.Remote = true
	if state, err := trace.ParseTraceState(t.State); err == nil { // else it goes no further
		config.TraceState = state
	}
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(config))
}
