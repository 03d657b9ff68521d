// Package tracing exports a node's spans, and what is gathered for Prometheus, by OTLP over HTTP.
//
// A node records a span for each slice that it publishes, which is the root of a trace and travels with the request,
// and a span for each message of a reply that it records, in the trace that the message carries. What happens in
// between is for services to record, with package endpoints/oteltrace or in their own way.
//
// # Guarantees
//
// A collector that is slow or away costs spans and a line in the log, never work: spans wait in a bounded queue in
// memory and are dropped when it is full. Spans carry ids, names and counts, never keys or payloads.
//
// # Not its job
//
// It makes no metrics, which is for package metrics, exports no logs, and sets nothing global.
//
// # Concurrency
//
// A Tracing is safe for concurrent use.
package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/zap"
)

// FromEnvironment as Config.Endpoint has OTEL_EXPORTER_OTLP_ENDPOINT, or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and
// OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, say where to. By themselves these variables turn nothing on.
const FromEnvironment = "env"

// DefaultService is Config.Service when it is not set.
const DefaultService = "tranche"

// Where an OTLP receiver takes what, unless told otherwise.
const (
	spansPath   = "/v1/traces"
	metricsPath = "/v1/metrics"
)

// Config says where spans, or metrics, go.
type Config struct {
	// Endpoint is the URL of an OTLP receiver over HTTP, such as http://127.0.0.1:4318, or FromEnvironment. Without a path
	// spans go to /v1/traces there, and metrics to /v1/metrics.
	Endpoint string
	// Ratio of slices that are traced, from 0 to 1. Replies follow the decision made for their slice.
	Ratio float64
	// Service and Version name this process. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES may say otherwise.
	Service, Version string
	Log              *zap.Logger // nil: none
}

func (c Config) withDefaults() Config {
	c.Service = cmp.Or(c.Service, DefaultService)
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	return c
}

// Validate says what is wrong with a Config before Start would.
func (c Config) Validate() error {
	if !(c.Ratio >= 0 && c.Ratio <= 1) { // also when it is no number
		return fmt.Errorf("Config.Ratio is %v; it must be 0 to 1", c.Ratio)
	}
	if c.Endpoint == FromEnvironment {
		return nil
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("Config.Endpoint %q is not a URL such as http://127.0.0.1:4318", c.Endpoint)
	}
	return nil
}

// at says where to; empty: the environment says it. Headers, certificates and time-outs always come from there, as
// OTEL_EXPORTER_OTLP_HEADERS and so on.
func (c Config) at(path string) string {
	if c.Endpoint == FromEnvironment {
		return ""
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil { // Validate has refused it
		return ""
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = path
	}
	return u.String()
}

// about describes this process.
func (c Config) about(ctx context.Context) (*resource.Resource, error) {
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", c.Service), attribute.String("service.version", c.Version)),
		resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describe this process (OTEL_RESOURCE_ATTRIBUTES): %w", err)
	}
	return about, nil
}

// Tracing records and exports spans until Stop.
type Tracing struct {
	provider *sdktrace.TracerProvider
}

// Start sets the export up. It does not wait for the receiver, which may come and go.
func Start(ctx context.Context, c Config) (*Tracing, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	about, err := c.about(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	var options []otlptracehttp.Option
	if at := c.at(spansPath); at != "" {
		options = append(options, otlptracehttp.WithEndpointURL(at))
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	return &Tracing{provider: sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&telling{SpanExporter: exporter, log: c.Log}), sdktrace.WithResource(about),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(c.Ratio))))}, nil
}

// Tracer returns what records a node's spans.
func (t *Tracing) Tracer() *Tracer { return NewTracer(t.provider) }

// Stop exports what is waiting, as far as ctx allows. It may be called twice.
func (t *Tracing) Stop(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("stop tracing: the last spans may be lost: %w", err)
	}
	return nil
}

// repeatLog is how often a failure that goes on is mentioned again.
const repeatLog = time.Minute

// telling is an exporter that tells our log of failures. OpenTelemetry itself would write them to standard error, once
// for each batch.
type telling struct {
	sdktrace.SpanExporter
	log  *zap.Logger
	told time.Time // batches are exported one at a time
}

// ExportSpans never fails: what is not taken is dropped.
func (t *telling) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := t.SpanExporter.ExportSpans(ctx, spans)
	if err != nil && time.Since(t.told) > repeatLog {
		t.told = time.Now()
		t.log.Warn("spans could not be exported and are dropped (--trace-otlp)", zap.Int("spans", len(spans)), zap.Error(err))
	}
	return nil
}

// Pushing exports metrics until Stop.
type Pushing struct {
	provider *sdkmetric.MeterProvider
}

// Push has all that is gathered exported every OTEL_METRIC_EXPORT_INTERVAL, or minute: the same instruments that a
// scrape finds. It does not wait for the receiver, which may come and go. Config.Ratio says nothing here.
func Push(ctx context.Context, c Config, from prometheus.Gatherer) (*Pushing, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("export metrics: %w", err)
	}
	about, err := c.about(ctx)
	if err != nil {
		return nil, fmt.Errorf("export metrics: %w", err)
	}
	var options []otlpmetrichttp.Option
	if at := c.at(metricsPath); at != "" {
		options = append(options, otlpmetrichttp.WithEndpointURL(at))
	}
	exporter, err := otlpmetrichttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("export metrics: %w", err)
	}
	reader := sdkmetric.NewPeriodicReader(&tellingMetrics{Exporter: exporter, log: c.Log},
		sdkmetric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(from))))
	return &Pushing{sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(about))}, nil
}

// Stop exports again, as far as ctx allows.
func (p *Pushing) Stop(ctx context.Context) error {
	if err := p.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("stop exporting metrics: %w", err)
	}
	return nil
}

// tellingMetrics is telling for metrics.
type tellingMetrics struct {
	sdkmetric.Exporter

	log  *zap.Logger
	told time.Time // they are exported one at a time
}

// Export never fails: the next one has it all.
func (t *tellingMetrics) Export(ctx context.Context, all *metricdata.ResourceMetrics) error {
	err := t.Exporter.Export(ctx, all)
	if err != nil && time.Since(t.told) > repeatLog {
		t.told = time.Now()
		t.log.Warn("metrics could not be exported (--metrics-otlp); the next export has them", zap.Error(err))
	}
	return nil
}
