package runs_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/health"
)

func TestExplainAnEndpointWithoutListeners(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	run := e.Load("count", 100, nil)
	e.WantOwner(run, "sent", health.NoListeners, health.OwnerOperator, "no service listens",
		"start a service for endpoint count")
	e.WantOwner(run, "ready", health.NoListeners, health.OwnerOperator, "4 of 4 are in flight")
	testenv.Same(t, len(e.Until(run, "ready", health.NoListeners).Advice), 1,
		"no service listens, and more than to start a service is advised")
	apitest.Eventually(t, "an item is explained", func() bool { // NATS may not say in time who listens
		one := e.Explain(run, "C99")
		return one.Missing == 1 && strings.Contains(one.Summary, "no service listens")
	})
	var whole health.EndpointExplanation
	apitest.Eventually(t, "the endpoint is explained", func() bool {
		e.Read("/endpoints/count/explain", &whole)
		e.AnswersAll(whole.Groups, whole.Missing)
		return whole.Missing == 100 && whole.Runs == 1 && strings.Contains(whole.Listens, "no service")
	})
	e.Read("/endpoints/idle/explain", &whole)
	if whole.Missing != 0 || !strings.Contains(whole.Summary, "nothing waits") {
		t.Errorf("an endpoint that no one uses is explained as %+v", whole)
	}
}

// A name with a slip in it is told with the one that was meant, and is gone from the list when no run uses it any more.
func TestExplainAnEndpointWithASlipInItsName(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	e.Serve(func(svc *endpoints.Service) error { return endpoints.HandleList(svc, "count", apitest.Reply) })
	run := e.Load("cout", 10, nil)
	e.WantOwner(run, "sent", health.NoListeners, health.OwnerOperator, "did you mean count?",
		"tranche run cancel "+run.String())
	apitest.Eventually(t, "the warning names it", func() bool {
		var view struct{ Warnings []string }
		e.Read("/runs/"+run.String(), &view)
		return strings.Contains(strings.Join(view.Warnings, "\n"), "endpoint cout (did you mean count?); start")
	})
	testenv.Must(e.Pool.Exec(t.Context(), `UPDATE endpoint_pace SET breaker = 'open', breaker_since = tranche_now(),
		probe_at = tranche_now() WHERE endpoint = 'cout'`))(t)
	listed := func() bool {
		var list struct{ Endpoints []struct{ Name string } }
		e.Read("/endpoints", &list)
		return slices.ContainsFunc(list.Endpoints, func(one struct{ Name string }) bool { return one.Name == "cout" })
	}
	if !listed() {
		t.Error("an endpoint that a run uses is not listed")
	}
	testenv.Must(control.New(e.Store).Cancel(t.Context(), control.Control{Run: run, Actor: "bob"}))(t)
	if listed() {
		t.Error("an endpoint that never was is listed when its run ended")
	}
}

func TestExplainServicesThatAreBusyAndGone(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	release := make(chan struct{})
	nc, _ := e.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "count", func(ctx context.Context, chunk *apitest.Numbers) error {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return apitest.Reply(ctx, chunk)
		}, endpoints.Concurrency(1))
	})
	run := e.Load("count", 1000, func(s *workqueue.StepSpec) { s.InFlight, s.Chunk = 100, 10 })
	e.WantOwner(run, "sent", health.ReasonWorking, health.OwnerService, "counter", "(holds ")
	e.WantOwner(run, "sent", health.ReasonBusy, health.OwnerService, "requests wait in the stream",
		"they answered nothing in the last minute")
	nc.Close() // as if it had died
	e.WantOwner(run, "sent", health.ReasonGone, health.OwnerOperator, "no service listens", "15s")
	close(release)
}

func TestExplainAConsumerThatIsPausedByHand(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	run := e.Load("count", 10, nil)
	e.Until(run, "sent", health.NoListeners)
	js := testenv.Must(jetstream.New(testenv.Conn(t, e.Ns), jetstream.WithDefaultTimeout(time.Minute)))(t)
	// The leader ends the pause within a second, which is what the explanation says.
	e.Keep(func(ctx context.Context) error {
		for ctx.Err() == nil {
			_, err := js.PauseConsumer(ctx, wire.StreamWork, "count", time.Now().Add(time.Hour))
			if err != nil {
				return err
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		return nil
	})
	e.WantOwner(run, "sent", health.ReasonSuspended, health.OwnerNode, "was paused in NATS", "resumes it")
}

type nothing struct{}

func TestExplainAFlowWithoutQuestions(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	type stage = endpoints.Stage[apitest.Number, apitest.Number, nothing, endpoints.None]
	rates := endpoints.To[apitest.Number, apitest.Number]("rates")
	e.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleFlow(svc, "flow", []func(context.Context, *stage) error{
			func(_ context.Context, s *stage) error {
				for _, c := range s.Items() {
					rates.Ask(c, c.In)
				}
				return nil
			},
			func(_ context.Context, s *stage) error {
				for _, c := range s.Items() {
					c.Reply(rates.Answer(c))
				}
				return nil
			},
		})
	})
	run := e.Load("flow", 10, nil)
	e.WantOwner(run, "sent", health.ReasonNested, health.OwnerOperator, "flow calls endpoint rates",
		"start a service for endpoint rates")
}

func TestExplainWithoutNATS(t *testing.T) {
	t.Parallel()
	ns := testenv.OwnNATS(t, embedded.NATSConfig{})
	e := apitest.SetupEngineOn(t, testenv.Conn(t, ns), api.Config{})
	e.Ns = ns
	e.Ready()
	sent := e.Load("count", 100, nil)
	e.Until(sent, "sent", health.NoListeners)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	testenv.NoError(t, ns.Stop(ctx))
	run := e.Load("count", 100, nil)
	e.WantOwner(run, "ready", health.ReasonNATSUnreachable, health.OwnerNode, "cannot reach NATS",
		"reconnects as soon as NATS answers")
	e.WantOwner(sent, "sent", health.ReasonQueued, health.OwnerService, "replies wait until it does")
}
