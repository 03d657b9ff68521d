package telemetry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/endpoints/telemetry"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// What is handled, failed and left out is counted by endpoint, and nothing else tells series apart.
func TestWhatIsCounted(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	wrapper, err := telemetry.Metrics(metric.NewMeterProvider(metric.WithReader(reader)))
	testenv.NoError(t, err)
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
	testenv.NoError(t, reader.Collect(t.Context(), &got))
	items, requests := map[string]int64{}, uint64(0)
	for _, m := range got.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				outcome, _ := p.Attributes.Value(telemetry.KeyOutcome)
				items[outcome.AsString()] += p.Value
				testenv.Same(t, p.Attributes.Len(), 2, "attributes of %v", p.Attributes)
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

func FuzzExtract(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff-x", "a=1,,b=2")
	f.Add("00--", "\x00")
	f.Fuzz(func(t *testing.T, parent, state string) {
		given := wire.Trace{Parent: parent, State: state}
		ctx := telemetry.Extract(t.Context(), given)
		got := telemetry.Inject(ctx)
		valid := wire.ParseTrace(parent, state)
		testenv.MustSame(t, got.IsZero(), valid.IsZero(), "%+v is empty", given)
		if valid.IsZero() {
			if trace.SpanContextFromContext(ctx).IsValid() {
				t.Errorf("%+v was taken", given)
			}
			return
		}
		if got.Parent[3:52] != valid.Parent[3:52] || wire.ParseTrace(got.Parent, got.State) != got {
			t.Errorf("%+v became %+v", given, got)
		}
	})
}
