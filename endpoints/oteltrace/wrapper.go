// Package oteltrace records a span of OpenTelemetry for each chunk that a service handles, and each stage of a flow:
//
//	svc, err := endpoints.New(nc, endpoints.Config{
//		Name: "statements", Wrap: []endpoints.Wrapper{oteltrace.Wrapper(provider)},
//	})
//
// # Guarantees
//
// The span's parent is the one that the request names in its header traceparent: that of the node, of the flow or of
// the caller that asked. The handler's context carries the span, so that spans of the handler's own are its children,
// and endpoints.Call and the requests of a flow continue the trace from there. The reply names the span as well, for
// the node that records it. The wrapper changes no answer. Spans carry names, ids and counts, never keys or payloads.
//
// # Not its job
//
// It exports nothing and sets nothing global: the provider, its sampler and its exporter are the service's. A service
// that does not use the package does not link OpenTelemetry, and hands trace contexts on all the same.
//
// # Concurrency
//
// A wrapper is safe for concurrent use if the provider is, as those of OpenTelemetry are.
package oteltrace

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Name is the instrumentation scope of the spans.
const Name = "github.com/tranchehq/tranche/endpoints/oteltrace"

// The attributes of a span.
const (
	KeySystem     = attribute.Key("messaging.system") // nats
	KeyEndpoint   = attribute.Key("tranche.endpoint")
	KeyStage      = attribute.Key("tranche.stage") // of a flow, from 0; missing on its first
	KeyRun        = attribute.Key("tranche.run")
	KeySlice      = attribute.Key("tranche.slice")
	KeyRoot       = attribute.Key("tranche.root")  // missing when it is the slice
	KeyStack      = attribute.Key("tranche.stack") // missing when a node asks
	KeyMode       = attribute.Key("tranche.mode")
	KeyAttempt    = attribute.Key("tranche.attempt")
	KeyGeneration = attribute.Key("tranche.generation")
	KeyItems      = attribute.Key("tranche.items")  // that the handler saw
	KeyErrors     = attribute.Key("tranche.errors") // error slots
)

// Wrapper returns a wrapper for endpoints.Config.Wrap, before others: their work then counts in.
func Wrapper(provider trace.TracerProvider) endpoints.Wrapper {
	tracer := provider.Tracer(Name)
	return func(ctx context.Context, w *endpoints.Work, next func(context.Context) error) error {
		header := w.Header()
		ctx, span := tracer.Start(Extract(ctx, wire.TraceOfHeader(header)), spanName(w),
			trace.WithSpanKind(trace.SpanKindConsumer))
		defer span.End() // also when next panics
		if span.IsRecording() {
			span.SetAttributes(attributes(w)...)
		}
		if t := Inject(ctx); !t.IsZero() {
			w.SetTrace(t.Parent, t.State)
			ctx = endpoints.ContextWithTracer(ctx, Inject)
		}
		err := next(ctx)
		if span.IsRecording() {
			span.SetAttributes(KeyErrors.Int(w.Errors()))
			if err != nil {
				span.RecordError(err)
				span.SetStatus(codes.Error, err.Error())
			}
		}
		return err
	}
}

func spanName(w *endpoints.Work) string {
	if w.Stage() > 0 {
		return fmt.Sprintf("%s stage %d", w.Endpoint(), w.Stage())
	}
	return w.Endpoint()
}

func attributes(w *endpoints.Work) []attribute.KeyValue {
	meta := w.Meta()
	list := []attribute.KeyValue{
		KeySystem.String("nats"), KeyEndpoint.String(w.Endpoint()), KeyRun.String(meta.Run.String()),
		KeySlice.String(meta.Slice.String()), KeyMode.String(string(meta.Mode)), KeyAttempt.Int(meta.Attempt),
		KeyGeneration.Int(meta.Generation), KeyItems.Int(len(w.Items())),
	}
	if w.Stage() > 0 {
		list = append(list, KeyStage.Int(w.Stage()))
	}
	if meta.Root != meta.Slice {
		list = append(list, KeyRoot.String(meta.Root.String()))
	}
	if meta.Stack != "" {
		list = append(list, KeyStack.String(string(meta.Stack)))
	}
	return list
}
