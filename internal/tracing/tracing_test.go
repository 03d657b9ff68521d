package tracing_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/tracing"
	"github.com/tranchehq/tranche/orchestrator/core"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// receiver takes spans as a collector does.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	paths  []string
	header http.Header
	took   []*otlp.ResourceSpans
}

func newReceiver(t *testing.T, status int) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var export collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &export)
		}
		testenv.Same(t, err, nil, "spans that are received")
		r.mu.Lock()
		defer r.mu.Unlock()
		r.paths, r.header = append(r.paths, req.URL.Path), req.Header
		r.took = append(r.took, export.GetResourceSpans()...)
		w.Header().Set("Content-Type", "application/x-protobuf")
		w.WriteHeader(status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) spans() map[string]*otlp.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[string]*otlp.Span{}
	for _, resource := range r.took {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				found[span.GetName()] = span
			}
		}
	}
	return found
}

// first is the path and the header of the first export, and the process that it is of.
func (r *receiver) first() (path string, header http.Header, process map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.took) == 0 {
		return "", nil, nil
	}
	return r.paths[0], r.header, about(r.took[0].GetResource().GetAttributes())
}

func about(list []*common.KeyValue) map[string]string {
	found := map[string]string{}
	for _, kv := range list {
		found[kv.GetKey()] = kv.GetValue().GetStringValue()
	}
	return found
}

func start(t *testing.T, c tracing.Config) *tracing.Tracing {
	t.Helper()
	return testenv.Must(tracing.Start(t.Context(), c))(t)
}

func stop(t *testing.T, tr *tracing.Tracing) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	testenv.NoError(t, tr.Stop(ctx))
}

// slice has the trace 84445555555555551111111122224333.
var slice = uuid.MustParse("11111111-2222-4333-8444-555555555555")

// use records a span of each kind, the second within the first, as a reply would carry it.
func use(tr *tracing.Tracing) (run uuid.UUID, carried wire.Trace) {
	run = uuid.New()
	var _ core.Tracer = tr.Tracer()
	carried, published := tr.Tracer().Publishing(context.Background(), core.TracedSlice{Run: run,
		Slice: slice, Endpoint: "statement", Attempt: 1, Generation: 1, Items: 5})
	published(nil)
	recorded := tr.Tracer().Recording(context.Background(), carried, core.TracedReply{Run: run,
		Endpoint: "statement", Service: "x@1 y", Slots: 5, Final: true})
	recorded(core.TraceOutcome{Taken: 5, Err: errors.New("no disk")})
	return run, carried
}

func TestSpansReachAnOTLPReceiver(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, http.StatusOK)
	tr := start(t, tracing.Config{Endpoint: r.URL, Ratio: 1, Version: "1.2.3"})
	run, carried := use(tr)
	if !strings.HasPrefix(carried.Parent, "00-84445555555555551111111122224333-") {
		t.Errorf("slice %s has the trace %s", slice, carried.Parent)
	}
	stop(t, tr)
	stop(t, tr)
	spans := r.spans()
	publish, record := spans["publish statement"], spans["record statement"]
	if len(spans) != 2 || publish == nil || record == nil {
		t.Fatalf("got %v", spans)
	}
	if string(record.GetParentSpanId()) != string(publish.GetSpanId()) || len(publish.GetParentSpanId()) != 0 ||
		string(record.GetTraceId()) != string(publish.GetTraceId()) {
		t.Errorf("the spans do not hang together: %v %v", publish, record)
	}
	testenv.Same(t, about(publish.GetAttributes())["tranche.run"], run.String(), "the run")
	testenv.Same(t, record.GetStatus().GetCode(), otlp.Status_STATUS_CODE_ERROR, "status %v", record.GetStatus())
	if carried.IsZero() || !strings.HasSuffix(carried.Parent, "-01") {
		t.Errorf("the request carries %+v", carried)
	}
	path, _, process := r.first()
	testenv.Same(t, path, "/v1/traces", "path")
	if process["service.name"] != "tranche" || process["service.version"] != "1.2.3" {
		t.Errorf("the process is %v", process)
	}
}

func TestPathIsKept(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, http.StatusOK)
	tr := start(t, tracing.Config{Endpoint: r.URL + "/otlp/spans", Ratio: 1})
	use(tr)
	stop(t, tr)
	path, _, _ := r.first()
	testenv.Same(t, path, "/otlp/spans", "path")
}

func TestRatioZeroExportsNothingAndStillCarriesATrace(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, http.StatusOK)
	tr := start(t, tracing.Config{Endpoint: r.URL})
	_, carried := use(tr)
	stop(t, tr)
	if len(r.spans()) != 0 || !strings.HasSuffix(carried.Parent, "-00") {
		t.Errorf("got %v, the request carries %+v", r.spans(), carried)
	}
}

func TestEnvironmentSaysWhere(t *testing.T) { // t.Setenv forbids t.Parallel
	r := newReceiver(t, http.StatusOK)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", r.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
	t.Setenv("OTEL_SERVICE_NAME", "bank")
	tr := start(t, tracing.Config{Endpoint: tracing.FromEnvironment, Ratio: 1})
	use(tr)
	stop(t, tr)
	_, header, process := r.first()
	if len(r.spans()) != 2 || header.Get("Authorization") != "secret" {
		t.Errorf("got %v with %v", r.spans(), header)
	}
	testenv.Same(t, process["service.name"], "bank", "the process")
}

func TestFailingReceiverIsToldOnce(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, http.StatusBadRequest)
	core, logged := observer.New(zap.InfoLevel)
	tr := start(t, tracing.Config{Endpoint: r.URL, Ratio: 1, Log: zap.New(core)})
	use(tr)
	stop(t, tr)
	testenv.Same(t, logged.FilterMessageSnippet("could not be exported").Len(), 1, "times told: %v", logged.All())
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []tracing.Config{
		{}, {Endpoint: "127.0.0.1:4318"}, {Endpoint: "grpc://x:4317"}, {Endpoint: "http://"},
		{Endpoint: "http://x:4318", Ratio: 1.1}, {Endpoint: "http://x:4318", Ratio: -0.1},
		{Endpoint: "http://x:4318", Ratio: math.NaN()},
	} {
		_, err := tracing.Start(t.Context(), c)
		testenv.Says(t, err, "Config.", "%+v", c)
	}
}

func TestGarbageBeginsATraceOfItsOwn(t *testing.T) {
	t.Parallel()
	seen := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(seen))
	tracing.NewTracer(provider).Recording(t.Context(), wire.Trace{Parent: "00-garbage"},
		core.TracedReply{Endpoint: "x"})(core.TraceOutcome{})
	if ended := seen.Ended(); len(ended) != 1 || ended[0].Parent().IsValid() {
		t.Errorf("got %v", ended)
	}
}
