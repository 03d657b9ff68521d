package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tranchehq/tranche/endpoints"
)

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
