package tracing_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/tracing"
)

// What is gathered for Prometheus arrives at a receiver of OTLP, at the latest when the export is stopped.
func TestMetricsArePushed(t *testing.T) {
	t.Parallel()
	names := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var all collector.ExportMetricsServiceRequest
		if err != nil || proto.Unmarshal(body, &all) != nil || r.URL.Path != "/v1/metrics" {
			t.Errorf("%s: %v", r.URL.Path, err)
			return
		}
		for _, of := range all.GetResourceMetrics() {
			for _, scope := range of.GetScopeMetrics() {
				for _, m := range scope.GetMetrics() {
					names <- m.GetName()
				}
			}
		}
	}))
	t.Cleanup(receiver.Close)
	registry := prometheus.NewRegistry()
	native := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "took_seconds", NativeHistogramBucketFactor: 1.1})
	native.Observe(1)
	registry.MustRegister(native)
	pushing := testenv.Must(tracing.Push(t.Context(), tracing.Config{Endpoint: receiver.URL}, registry))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	testenv.NoError(t, pushing.Stop(ctx))
	testenv.Same(t, <-names, "took_seconds", "was sent")
	_, err := tracing.Push(t.Context(), tracing.Config{Endpoint: "here"}, registry)
	testenv.Fails(t, err, "an endpoint that is not a URL is taken")
}
