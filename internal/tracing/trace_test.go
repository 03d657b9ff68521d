package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/telemetry"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/tracing"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
)

type query struct {
	ID string `json:"id"`
}

// world is a node and three services that record spans in memory: a flow "statement" that asks "accounts", whose
// handler calls "rates" within a span of its own.
type world struct {
	*nodetest.Bundle

	seen  *tracetest.SpanRecorder
	spans *sdktrace.TracerProvider
}

func setup(t *testing.T, traced bool) *world {
	t.Helper()
	w := &world{Bundle: nodetest.ServersOnly(t), seen: tracetest.NewSpanRecorder()}
	w.spans = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.seen))
	config := orchestrator.Config{}
	if traced {
		config.Tracer = tracing.NewTracer(w.spans)
	}
	w.Node = w.StartNodeWith(t, config)
	return w
}

func (w *world) serve(t *testing.T, name string, wrap []endpoints.Wrapper, handle func(*endpoints.Service) error) {
	t.Helper()
	svc := testenv.Must(endpoints.New(testenv.Conn(t, w.NS), endpoints.Config{Name: name, Wrap: wrap}))(t)
	testenv.NoError(t, handle(svc))
	nodetest.Run(t, "service", svc.Run)
}

// serveAll serves the three endpoints.
func (w *world) serveAll(t *testing.T) {
	t.Helper()
	wrap := []endpoints.Wrapper{telemetry.Spans(w.spans)}
	w.serve(t, "statement", wrap, func(svc *endpoints.Service) error {
		return endpoints.HandleFlow(svc, "statement", statementStages())
	})
	nc := testenv.Conn(t, w.NS)
	w.serve(t, "accounts", wrap, func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "accounts", func(ctx context.Context, c *endpoints.Chunk[query, string]) error {
			ctx, span := w.spans.Tracer("bank").Start(ctx, "lookup")
			defer span.End()
			for _, item := range c.Items() {
				rate, err := endpoints.Call[query, string](ctx, nc, "rates", item.Key, item.In)
				if err != nil {
					return err
				}
				item.Reply(rate)
			}
			return nil
		})
	})
	w.serve(t, "rates", wrap, func(svc *endpoints.Service) error {
		return endpoints.HandleEach(svc, "rates", func(_ context.Context, q query) (string, error) { return q.ID, nil })
	})
}

func statementStages() []func(context.Context, *statementStage) error {
	accounts := endpoints.To[query, string]("accounts")
	return []func(context.Context, *statementStage) error{
		func(_ context.Context, s *statementStage) error {
			for _, item := range s.Items() {
				accounts.Ask(item, item.In)
			}
			return nil
		},
		func(_ context.Context, s *statementStage) error {
			for _, item := range s.Items() {
				item.Reply(accounts.Answer(item))
			}
			return nil
		},
	}
}

type statementStage = endpoints.Stage[query, string, endpoints.None, endpoints.None]

func (w *world) run(t *testing.T, endpoint string) workqueue.RunID {
	t.Helper()
	req := nodetest.Request(endpoint)
	req.Steps[0].Timeout = 10 * time.Minute
	return w.Start(t, req, 1)
}

// ended waits for spans of all the names and returns them.
func (w *world) ended(t *testing.T, names ...string) map[string]sdktrace.ReadOnlySpan {
	t.Helper()
	found := map[string]sdktrace.ReadOnlySpan{}
	nodetest.Until(t, fmt.Sprintf("spans %q end", names), func() bool {
		for _, span := range w.seen.Ended() {
			found[span.Name()] = span
		}
		return !slices.ContainsFunc(names, func(name string) bool { return found[name] == nil })
	})
	return found
}

func describe(spans []sdktrace.ReadOnlySpan) string {
	var lines []string
	for _, s := range spans {
		lines = append(lines, fmt.Sprintf("%s %s in %s %v", s.Name(), s.SpanContext().SpanID(), s.Parent().SpanID(),
			s.Status()))
	}
	return strings.Join(lines, "\n")
}

// One slice is one trace, from the node over the flow and what it asks and calls back to the node.
func TestOneTraceFromNodeToNode(t *testing.T) {
	t.Parallel()
	w := setup(t, true)
	w.serveAll(t)
	run := w.run(t, "statement")
	parents := map[string]string{
		"statement": "publish statement", "accounts": "statement", "lookup": "accounts", "rates": "lookup",
		"statement stage 1": "statement", "record statement": "statement stage 1",
	}
	spans := w.ended(t, "publish statement", "statement", "accounts", "lookup", "rates", "statement stage 1",
		"record statement")
	root := spans["publish statement"]
	if root.Parent().IsValid() {
		t.Errorf("the slice's span has the parent %v", root.Parent())
	}
	for child, parent := range parents {
		got, want := spans[child], spans[parent].SpanContext()
		if got.Parent().SpanID() != want.SpanID() || got.SpanContext().TraceID() != root.SpanContext().TraceID() {
			t.Errorf("%s is not within %s:\n%s", child, parent, describe(w.seen.Ended()))
		}
		if child != "lookup" && !got.Parent().IsRemote() {
			t.Errorf("the parent of %s is not remote", child)
		}
	}
	testenv.Same(t, len(w.seen.Ended()), 7, "spans:\n%s", describe(w.seen.Ended()))
	slice := value(root, telemetry.KeySlice)
	for _, name := range []string{"publish statement", "statement", "accounts", "statement stage 1", "record statement"} {
		testenv.Same(t, value(spans[name], telemetry.KeyRun), run.String(), "%s: run", name)
	}
	testenv.Same(t, value(spans["accounts"], telemetry.KeyRoot), slice, "the root of what the flow asked")
	testenv.Same(t, value(spans["accounts"], telemetry.KeyItems), "1", "items")
}

func value(span sdktrace.ReadOnlySpan, key attribute.Key) string {
	for _, kv := range span.Attributes() {
		if kv.Key == key {
			return kv.Value.String()
		}
	}
	return ""
}

// Services without a wrapper hand the trace on, and a node without a tracer begins none.
func TestTraceGoesThroughServicesThatDoNotTrace(t *testing.T) {
	t.Parallel()
	w := setup(t, true)
	w.serve(t, "bare", nil, func(svc *endpoints.Service) error {
		return endpoints.HandleEach(svc, "bare", func(_ context.Context, q query) (string, error) { return q.ID, nil })
	})
	w.run(t, "bare")
	spans := w.ended(t, "publish bare", "record bare")
	testenv.Same(t, spans["record bare"].Parent().SpanID(), spans["publish bare"].SpanContext().SpanID(),
		"the parent of what was recorded bare: %s", describe(w.seen.Ended()))
}

func TestNodeWithoutTracerBeginsNoTrace(t *testing.T) {
	t.Parallel()
	w := setup(t, false)
	seen := make(chan wire.Trace, 1)
	w.serve(t, "bare", nil, func(svc *endpoints.Service) error {
		return endpoints.HandleEach(svc, "bare", func(ctx context.Context, q query) (string, error) {
			seen <- endpoints.TraceOf(ctx)
			return q.ID, nil
		})
	})
	w.run(t, "bare")
	if got := <-seen; !got.IsZero() || len(w.seen.Ended()) != 0 {
		t.Errorf("the request carries %+v; spans: %s", got, describe(w.seen.Ended()))
	}
}

// PROOF: who may do what, 17.
// A handler that fails is seen in its span, by codes alone, and panics do not lose it.
func TestFailuresAreSeen(t *testing.T) {
	t.Parallel()
	w := setup(t, true)
	wrap := []endpoints.Wrapper{telemetry.Spans(w.spans)}
	for name, fail := range map[string]func() error{
		"failing":   func() error { return endpoints.Fail("broken", "it is broken: CANARY-4711") },
		"unknown":   func() error { return errors.New("no account CANARY-4711") },
		"panicking": func() error { panic("no") },
	} {
		w.serve(t, name, wrap, func(svc *endpoints.Service) error {
			return endpoints.HandleList(svc, name, func(context.Context, *endpoints.Chunk[query, string]) error {
				return fail()
			})
		})
		w.run(t, name)
		testenv.Same(t, w.ended(t, name)[name].Status().Code.String(), "Error", "%s", name)
	}
	w.serve(t, "slots", wrap, func(svc *endpoints.Service) error {
		return endpoints.HandleEach(svc, "slots", func(context.Context, query) (string, error) {
			return "", endpoints.Fail("overdrawn", "no")
		})
	})
	w.run(t, "slots")
	testenv.Same(t, value(w.ended(t, "slots")["slots"], telemetry.KeyErrors), "1", "errors")
	_, _, end := tracing.NewTracer(w.spans).Fetching(t.Context(), core.TracedSlice{})
	end(&pgconn.PgError{Code: "22P02", Message: `invalid input syntax for type uuid: "CANARY-4711"`})
	for _, span := range w.seen.Ended() {
		if said := fmt.Sprint(span.Name(), span.Status(), span.Attributes(), span.Events()); strings.Contains(said,
			"CANARY") {
			t.Errorf("an item is in a trace: %s", said)
		}
	}
}
