// Package telemetry records OpenTelemetry spans and metrics of a service:
//
//	svc, err := endpoints.New(nc, endpoints.Config{
//		Name: "statements", Wrap: []endpoints.Wrapper{telemetry.Spans(tracers), metrics},
//	})
//
// [Spans] records a span for each chunk that a service handles, and each stage of a flow. The span's parent is in the
// request's traceparent header: a span of the node, flow or caller. The handler's context carries the span, so the
// handler's own spans are its children, and endpoints.Call and a flow's requests continue the trace. The reply carries
// the span to the node that records it. Spans contain names, IDs and counts, never keys or payloads.
//
// [Metrics] has one series per endpoint and outcome; attributes contain no runs, keys or messages. For Prometheus, use
// a provider with go.opentelemetry.io/otel/exporters/prometheus.
//
// The wrappers change no answers, export nothing and set no globals: providers, samplers and exporters belong to the
// service. A service that does not import this package does not link OpenTelemetry, but still passes on trace contexts.
//
// A wrapper is safe for concurrent use if its provider is.
package telemetry

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Name is the instrumentation scope.
const Name = "github.com/tranchehq/tranche/endpoints/telemetry"

// Attributes of a span.
const (
	KeySystem     = attribute.Key("messaging.system") // nats
	KeyEndpoint   = attribute.Key("tranche.endpoint")
	KeyStage      = attribute.Key("tranche.stage") // of a flow, from 0; omitted for the first
	KeyRun        = attribute.Key("tranche.run")
	KeySlice      = attribute.Key("tranche.slice")
	KeyRoot       = attribute.Key("tranche.root")  // omitted if equal to the slice
	KeyStack      = attribute.Key("tranche.stack") // omitted if a node asks
	KeyMode       = attribute.Key("tranche.mode")
	KeyAttempt    = attribute.Key("tranche.attempt")
	KeyGeneration = attribute.Key("tranche.generation")
	KeyItems      = attribute.Key("tranche.items")  // that the handler saw
	KeyErrors     = attribute.Key("tranche.errors") // error slots
)

// Spans returns a wrapper for endpoints.Config.Wrap; put it first to include other wrappers.
func Spans(provider trace.TracerProvider) endpoints.Wrapper {
	tracer := provider.Tracer(Name)
	return func(ctx context.Context, w *endpoints.Work, next func(context.Context) error) error {
		name := w.Endpoint()
		if w.Stage() > 0 {
			name = fmt.Sprintf("%s stage %d", name, w.Stage())
		}
		ctx, span := tracer.Start(Extract(ctx, wire.TraceOfHeader(w.Header())), name,
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
				code := "the handler failed" // the message may quote items; it is in the run
				if slot, ok := errors.AsType[*wire.SlotError](err); ok {
					code = slot.Code
				}
				span.SetStatus(codes.Error, code)
			}
		}
		return err
	}
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

// Context returns a context in which endpoints.Call continues the span of ctx or of a context derived from the
// result, for callers that are not handlers, such as HTTP servers.
func Context(ctx context.Context) context.Context { return endpoints.ContextWithTracer(ctx, Inject) }

// Inject returns the trace context of ctx's span, or the zero Trace.
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

// flagsKnown are the flags of version 00: sampled and random IDs.
const flagsKnown = 0x03

// Extract returns a context in which new spans are children of t. The zero Trace leaves ctx unchanged.
func Extract(ctx context.Context, t wire.Trace) context.Context {
	t = wire.ParseTrace(t.Parent, t.State)
	if t.IsZero() {
		return ctx
	}
	var config trace.SpanContextConfig
	var flags [1]byte
	// ParseTrace has checked that these are hexadecimal.
	_, _ = hex.Decode(config.TraceID[:], []byte(t.Parent[3:35]))
	_, _ = hex.Decode(config.SpanID[:], []byte(t.Parent[36:52]))
	_, _ = hex.Decode(flags[:], []byte(t.Parent[53:55]))
	config.TraceFlags = trace.TraceFlags(flags[0] & flagsKnown)
	config.Remote = true
	if state, err := trace.ParseTraceState(t.State); err == nil { // an invalid state is dropped
		config.TraceState = state
	}
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(config))
}

// Names of the instruments and an attribute.
const (
	Requests = "tranche.service.request.duration" // histogram, seconds: a chunk or flow stage in the handler
	Items    = "tranche.service.items"            // counter: items handled

	// KeyOutcome is done, failed (an error slot) or open (left out, or moved to a later stage).
	KeyOutcome = attribute.Key("tranche.outcome")
)

// Metrics returns a wrapper for endpoints.Config.Wrap; put it first to include other wrappers. It returns an error if
// the provider rejects the instruments.
func Metrics(provider metric.MeterProvider) (endpoints.Wrapper, error) {
	meter := provider.Meter(Name)
	took, err := meter.Float64Histogram(Requests, metric.WithUnit("s"),
		metric.WithDescription("Time of a request in the handler"),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300))
	if err != nil {
		return nil, err
	}
	items, err := meter.Int64Counter(Items, metric.WithUnit("{item}"),
		metric.WithDescription("Handled items, by outcome"))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, w *endpoints.Work, next func(context.Context) error) error {
		began, all, errorsBefore := time.Now(), len(w.Items()), w.Errors()
		defer func() { // also when next panics
			of := KeyEndpoint.String(w.Endpoint())
			took.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(of))
			failed, open := w.Errors()-errorsBefore, len(w.Items())
			for outcome, n := range map[string]int{"failed": failed, "open": open, "done": all - failed - open} {
				if n > 0 {
					items.Add(ctx, int64(n), metric.WithAttributes(of, KeyOutcome.String(outcome)))
				}
			}
		}()
		return next(ctx)
	}, nil
}
