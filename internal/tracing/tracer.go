package tracing

import (
	"context"
	"crypto/rand"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tranchehq/tranche/endpoints/telemetry"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/core"
)

// scope is the instrumentation scope of a node's spans.
const scope = "github.com/tranchehq/tranche/orchestrator"

// Attributes in addition to those of package telemetry.
const (
	keyStep    = attribute.Key("tranche.step")
	keyService = attribute.Key("tranche.service") // name@version instance
	keySlots   = attribute.Key("tranche.slots")   // in a message of a reply
	keyTaken   = attribute.Key("tranche.taken")   // of these
	keyStale   = attribute.Key("tranche.stale")
	keyFinal   = attribute.Key("tranche.final")
)

// Tracer records a node's spans with OpenTelemetry. It implements orchestrator.Tracer.
type Tracer struct {
	tracer trace.Tracer
}

// NewTracer returns a Tracer for a provider.
func NewTracer(provider trace.TracerProvider) *Tracer { return &Tracer{tracer: provider.Tracer(scope)} }

type sliceKey struct{} // of the slice in the context of a root span

// sliceIDs makes the trace ID of a slice from its ID, so that each is found by the other. The halves are swapped:
// samplers compare the second half, and that of a UUID begins with fixed bits.
type sliceIDs struct{}

func (sliceIDs) NewIDs(ctx context.Context) (id trace.TraceID, span trace.SpanID) {
	slice, ok := ctx.Value(sliceKey{}).(uuid.UUID)
	if !ok {
		_, _ = rand.Read(slice[:]) // never fails
	}
	copy(id[:8], slice[8:])
	copy(id[8:], slice[:8])
	return id, sliceIDs{}.NewSpanID(ctx, id)
}

func (sliceIDs) NewSpanID(context.Context, trace.TraceID) (span trace.SpanID) {
	_, _ = rand.Read(span[:]) // never fails
	return span
}

// Publishing implements orchestrator.Tracer. Its span is the root of a trace.
func (t *Tracer) Publishing(
	ctx context.Context, s core.TracedSlice,
) (carried wire.Trace, end func(error)) {
	ctx, span := t.tracer.Start(context.WithValue(ctx, sliceKey{}, s.Slice), "publish "+s.Endpoint, trace.WithNewRoot(),
		trace.WithSpanKind(trace.SpanKindProducer))
	if span.IsRecording() {
		span.SetAttributes(common(s.Endpoint, s.Run, s.Slice)...)
		span.SetAttributes(keyStep.Int(s.Step), telemetry.KeyAttempt.Int(s.Attempt),
			telemetry.KeyGeneration.Int(s.Generation), telemetry.KeyItems.Int(s.Items))
	}
	return telemetry.Inject(ctx), func(err error) { finish(span, err) }
}

// Fetching implements orchestrator.Tracer. Its span is the root of a trace.
func (t *Tracer) Fetching(
	ctx context.Context, s core.TracedSlice,
) (within context.Context, carried wire.Trace, end func(error)) {
	ctx, span := t.tracer.Start(context.WithValue(ctx, sliceKey{}, s.Slice), "fetch "+s.Endpoint, trace.WithNewRoot(),
		trace.WithSpanKind(trace.SpanKindClient))
	if span.IsRecording() {
		span.SetAttributes(telemetry.KeyEndpoint.String(s.Endpoint), telemetry.KeyRun.String(s.Run.String()),
			telemetry.KeySlice.String(s.Slice.String()), keyStep.Int(s.Step), telemetry.KeyAttempt.Int(s.Attempt),
			telemetry.KeyGeneration.Int(s.Generation), telemetry.KeyItems.Int(s.Items))
	}
	return ctx, telemetry.Inject(ctx), func(err error) { finish(span, err) }
}

// Recording implements orchestrator.Tracer. Its span is a child of the one in the reply.
func (t *Tracer) Recording(
	ctx context.Context, carried wire.Trace, r core.TracedReply,
) (end func(core.TraceOutcome)) {
	_, recording := t.tracer.Start(telemetry.Extract(ctx, carried), "record "+r.Endpoint,
		trace.WithSpanKind(trace.SpanKindConsumer))
	if recording.IsRecording() {
		recording.SetAttributes(common(r.Endpoint, r.Run, r.Slice)...)
		recording.SetAttributes(keyService.String(r.Service), keySlots.Int(r.Slots), keyFinal.Bool(r.Final))
	}
	return func(out core.TraceOutcome) {
		if recording.IsRecording() {
			recording.SetAttributes(keyTaken.Int(out.Taken), keyStale.Bool(out.Stale))
		}
		finish(recording, out.Err)
	}
}

func common(endpoint string, run, slice uuid.UUID) []attribute.KeyValue {
	return []attribute.KeyValue{telemetry.KeySystem.String("nats"), telemetry.KeyEndpoint.String(endpoint),
		telemetry.KeyRun.String(run.String()), telemetry.KeySlice.String(slice.String())}
}

func finish(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, core.WithoutValues(err))
	}
	span.End()
}
