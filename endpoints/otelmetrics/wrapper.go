// Package otelmetrics measures a service with OpenTelemetry:
//
//	svc, err := endpoints.New(nc, endpoints.Config{
//		Name: "statements", Wrap: []endpoints.Wrapper{otelmetrics.Wrapper(provider)},
//	})
//
// For Prometheus, use a provider with go.opentelemetry.io/otel/exporters/prometheus.
//
// There is one series per endpoint and outcome; attributes contain no runs, keys or messages. The wrapper changes no
// answers. It exports nothing and sets no globals: the provider and its readers belong to the service. A service that
// does not import this package does not link OpenTelemetry.
//
// A wrapper is safe for concurrent use if the provider is.
package otelmetrics

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tranchehq/tranche/endpoints"
)

// Name is the instrumentation scope.
const Name = "github.com/tranchehq/tranche/endpoints/otelmetrics"

// Names of the instruments and their attributes.
const (
	Requests = "tranche.service.request.duration" // histogram, seconds: a chunk or flow stage in the handler
	Items    = "tranche.service.items"            // counter: items handled

	KeyEndpoint = attribute.Key("tranche.endpoint")
	// KeyOutcome is done, failed (an error slot) or open (left out, or moved to a later stage).
	KeyOutcome = attribute.Key("tranche.outcome")
)

// Wrapper returns a wrapper for endpoints.Config.Wrap; put it first to include other wrappers. It returns an error if
// the provider rejects the instruments.
func Wrapper(provider metric.MeterProvider) (endpoints.Wrapper, error) {
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
