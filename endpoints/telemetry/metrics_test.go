package telemetry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/endpoints/telemetry"
)

// What is handled, failed and left out is counted by endpoint, and nothing else tells series apart.
func TestWhatIsCounted(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	wrapper, err := telemetry.Metrics(metric.NewMeterProvider(metric.WithReader(reader)))
	if err != nil {
		t.Fatal(err)
	}
	kit := endpointstest.New(t, endpointstest.Timeout(time.Minute))
	kit.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleEach(svc, "each", func(_ context.Context, fails bool) (int, error) {
			if fails {
				return 0, errors.New("it fails")
			}
			return 1, nil
		}, endpoints.Wrap(wrapper))
	})
	kit.Send("each", endpointstest.Item("a", false), endpointstest.Item("b", true), endpointstest.Item("c", false))
	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	items, requests := map[string]int64{}, uint64(0)
	for _, m := range got.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				outcome, _ := p.Attributes.Value(telemetry.KeyOutcome)
				items[outcome.AsString()] += p.Value
				if p.Attributes.Len() != 2 {
					t.Errorf("attributes %v", p.Attributes)
				}
			}
		case metricdata.Histogram[float64]:
			want := attribute.NewSet(telemetry.KeyEndpoint.String("each"))
			for _, p := range data.DataPoints {
				if requests += p.Count; !p.Attributes.Equals(&want) {
					t.Errorf("attributes %v", p.Attributes)
				}
			}
		}
	}
	if items["done"] != 2 || items["failed"] != 1 || len(items) != 2 || requests != 1 {
		t.Errorf("items %v, %d requests", items, requests)
	}
}
