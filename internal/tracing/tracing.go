// Package tracing exports a node's spans and Prometheus metrics by OTLP over HTTP.
//
// A node records a span per published slice, the root of a trace that travels with the request, and a span per
// recorded reply message, in the message's trace. Services record what happens in between, with package
// endpoints/telemetry or their own means.
//
// A slow or unavailable collector costs spans and log lines, never work: spans wait in a bounded queue and are
// dropped when it is full. Spans carry IDs, names and counts, never keys or payloads. The package defines no metrics
// (package metrics does), exports no logs, and sets nothing global.
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

// FromEnvironment as Config.Endpoint takes the endpoint from OTEL_EXPORTER_OTLP_ENDPOINT, or from
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and OTEL_EXPORTER_OTLP_METRICS_ENDPOINT. These variables alone enable nothing.
const FromEnvironment = "env"

// DefaultService is the default of Config.Service.
const DefaultService = "tranche"

// Default paths of an OTLP receiver.
const (
	spansPath   = "/v1/traces"
	metricsPath = "/v1/metrics"
)

// Config configures the export of spans or metrics.
type Config struct {
	// Endpoint is the URL of an OTLP/HTTP receiver, such as http://127.0.0.1:4318, or FromEnvironment. Without a path,
	// spans go to /v1/traces and metrics to /v1/metrics.
	Endpoint string
	// Ratio of traced slices, from 0 to 1. Replies follow their slice's decision.
	Ratio float64
	// Service and Version name this process. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override them.
	Service, Version string
	Log              *zap.Logger // nil: none
}

func (c Config) withDefaults() Config {
	c.Service = cmp.Or(c.Service, DefaultService)
	c.Log = cmp.Or(c.Log, zap.NewNop())
	return c
}

// Validate returns the error that Start would.
func (c Config) Validate() error {
	if !(c.Ratio >= 0 && c.Ratio <= 1) { // also for NaN
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

// at returns the URL; empty: the environment's. Headers, certificates and timeouts always come from the environment,
// as OTEL_EXPORTER_OTLP_HEADERS and so on.
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

// Start starts the export without waiting for the receiver, which may come and go.
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
		sdktrace.WithIDGenerator(sliceIDs{}),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(c.Ratio))))}, nil
}

// Tracer returns the recorder of a node's spans.
func (t *Tracing) Tracer() *Tracer { return NewTracer(t.provider) }

// Stop exports the queue, as far as ctx allows. It may be called twice.
func (t *Tracing) Stop(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("stop tracing: the last spans may be lost: %w", err)
	}
	return nil
}

// repeatLog is the interval for repeating the log of a persistent failure.
const repeatLog = time.Minute

// telling is an exporter that logs failures. OpenTelemetry itself would write each to standard error.
type telling struct {
	sdktrace.SpanExporter
	log  *zap.Logger
	told time.Time // batches are exported one at a time
}

// ExportSpans never fails: rejected spans are dropped.
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

// Push exports all gathered metrics, the same as a scrape, every OTEL_METRIC_EXPORT_INTERVAL or minute. It does not
// wait for the receiver, which may come and go, and ignores Config.Ratio.
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

// Stop exports what is left, as far as ctx allows.
func (p *Pushing) Stop(ctx context.Context) error {
	if err := p.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("stop exporting metrics: %w", err)
	}
	return nil
}

type tellingMetrics struct {
	sdkmetric.Exporter

	log  *zap.Logger
	told time.Time // exports are sequential
}

// Export never fails: the next one includes everything.
func (t *tellingMetrics) Export(ctx context.Context, all *metricdata.ResourceMetrics) error {
	err := t.Exporter.Export(ctx, all)
	if err != nil && time.Since(t.told) > repeatLog {
		t.told = time.Now()
		t.log.Warn("metrics could not be exported (--metrics-otlp); the next export has them", zap.Error(err))
	}
	return nil
}
