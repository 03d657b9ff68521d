package tracing

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
)

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

// Stop exports once more, as far as ctx allows.
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
