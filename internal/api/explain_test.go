package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/explain"
	"github.com/tranchehq/tranche/workqueue/start"
)

// engine is a real node behind the API, with a NATS server and a database of its own.
type engine struct {
	*testing.T
	pool  *pgxpool.Pool
	store *database.DB
	ns    *embedded.NATS
	node  *orchestrator.Node
	url   string
}

func setupEngine(t *testing.T) *engine {
	t.Helper()
	pool, ns := testenv.Pool(t), testenv.NATS(t)
	e := &engine{T: t, pool: pool, store: database.New(pool), ns: ns}
	nc := testenv.Conn(t, ns)
	node, err := orchestrator.New(e.store, nc, orchestrator.Config{Version: "test", Host: "here", Grace: time.Second,
		Streams: stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	e.node = node
	e.keep(node.Run)
	select {
	case <-node.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the node did not get ready")
	}
	server, err := api.New(e.store, node, nc, api.Config{Build: buildinfo.Info{Version: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(server.Handler())
	t.Cleanup(web.Close)
	e.url = web.URL
	return e
}

// keep runs f until the end of the test, or until it is told to stop.
func (e *engine) keep(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f(ctx); err != nil && !errors.Is(err, context.Canceled) {
			e.Logf("ended: %v", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	e.Cleanup(stop)
	return stop
}

// conn connects even while the server is being restarted.
func (e *engine) conn() *nats.Conn {
	e.Helper()
	return testenv.Dial(e.T, e.ns.URL(), nats.RetryOnFailedConnect(true))
}

type number struct {
	N int `json:"n"`
}

// load starts a run of numbers.
func (e *engine) load(endpoint string, items int, change func(*workqueue.StepSpec)) workqueue.RunID {
	e.Helper()
	step := workqueue.StepSpec{Name: endpoint, Endpoint: endpoint, StepSettings: workqueue.StepSettings{Chunk: 10,
		InFlight: 4, MaxAttempts: 3, Timeout: time.Minute, RetryBackoff: 10 * time.Millisecond}}
	if change != nil {
		change(&step)
	}
	i := 0
	loaded, err := e.node.Start(e.Context(), start.LoadRequest{Plan: endpoint, CreatedBy: "test",
		Steps: []workqueue.StepSpec{step}},
		func(item *start.LoadItem) error {
			if i == items {
				return io.EOF
			}
			item.Key, item.Payload = fmt.Sprint("C", i), fmt.Appendf(nil, `{"n":%d}`, i)
			i++
			return nil
		})
	if err != nil {
		e.Fatal(err)
	}
	return loaded.Run
}

// serve runs a service and returns its connection and what stops it in good order.
func (e *engine) serve(add func(*endpoints.Service) error) (*nats.Conn, func()) {
	e.Helper()
	nc := e.conn()
	svc, err := endpoints.New(nc, endpoints.Config{Name: "counter", Version: "1.0.0", Log: zap.NewNop()})
	if err != nil {
		e.Fatal(err)
	}
	if err := add(svc); err != nil {
		e.Fatal(err)
	}
	return nc, e.keep(svc.Run)
}

type numbers = endpoints.Chunk[number, number]

func reply(_ context.Context, chunk *numbers) error {
	for _, item := range chunk.Items() {
		item.Reply(item.In)
	}
	return nil
}

func (e *engine) get(path string, out any) {
	e.Helper()
	answer, err := http.Get(e.url + api.Prefix + path)
	if err != nil {
		e.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || json.Unmarshal(text, out) != nil {
		e.Fatalf("GET %s: %d %s, %v", path, answer.StatusCode, text, err)
	}
}

// explain explains a run and checks that no question is left open.
func (e *engine) explain(run workqueue.RunID, key string) explain.Explanation {
	e.Helper()
	var out explain.Explanation
	query := ""
	if key != "" {
		query = "?item=" + url.QueryEscape(key)
	}
	e.get("/runs/"+run.String()+"/explain"+query, &out)
	e.answersAll(out.Groups, out.Missing)
	return out
}

func (e *engine) answersAll(groups []explain.MissingGroup, missing int64) {
	e.Helper()
	var sum int64
	for i := range groups {
		g := &groups[i]
		sum += g.Items
		if g.Owner == "" || g.Who == "" || g.Why == "" || g.Next == "" || g.Reason == "" || g.Since == nil ||
			g.Owner == explain.OwnerOperator && len(g.Advice) == 0 {
			e.Errorf("the group leaves a question open: %+v", *g)
		}
		if strings.Contains(strings.ToLower(g.Who+g.Why+g.Next), "unknown") || g.Reason == explain.ReasonStray {
			e.Errorf("the group says that it does not know: %+v", *g)
		}
	}
	if sum != missing {
		e.Errorf("the groups have %d items and %d are missing", sum, missing)
	}
}

// until explains a run until some group has the reason, and returns it.
func (e *engine) until(run workqueue.RunID, state string, reason explain.Reason) explain.MissingGroup {
	e.Helper()
	var last explain.Explanation
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		last = e.explain(run, "")
		for _, g := range last.Groups {
			if g.Reason == reason && g.State == state {
				e.Logf("%s\n%s: %s\n%s\n%s", last.Summary, g.Owner, g.Who, g.Why, g.Next)
				return g
			}
		}
	}
	text, _ := json.MarshalIndent(last, "", " ")
	e.Fatalf("nothing is %s for %s: %s", state, reason, text)
	return explain.MissingGroup{}
}

func (e *engine) wantOwner(g explain.MissingGroup, owner explain.Owner, says ...string) {
	e.Helper()
	text := fmt.Sprintln(g.Who, g.Why, g.Next, g.Advice)
	for _, want := range says {
		if g.Owner != owner || !strings.Contains(text, want) {
			e.Errorf("it is %s's turn, %s; want %s and %q", g.Owner, text, owner, want)
		}
	}
}

func TestExplainAnEndpointWithoutListeners(t *testing.T) {
	t.Parallel()
	e := setupEngine(t)
	run := e.load("count", 100, nil)
	e.wantOwner(e.until(run, "sent", explain.ReasonNoListener), explain.OwnerOperator, "nobody listens",
		"start a service that listens on endpoint count")
	e.wantOwner(e.until(run, "ready", explain.ReasonNoListener), explain.OwnerOperator, "4 of 4 are out")
	if one := e.explain(run, "C99"); one.Missing != 1 || !strings.Contains(one.Summary, "nobody listens") {
		t.Errorf("an item is explained as %+v", one)
	}
	var whole explain.EndpointExplanation
	e.get("/endpoints/count/explain", &whole)
	e.answersAll(whole.Groups, whole.Missing)
	if whole.Missing != 100 || whole.Runs != 1 || !strings.Contains(whole.Listens, "nobody") {
		t.Errorf("the endpoint is explained as %+v", whole)
	}
	e.get("/endpoints/idle/explain", &whole)
	if whole.Missing != 0 || !strings.Contains(whole.Summary, "nothing waits") {
		t.Errorf("an endpoint that nobody uses is explained as %+v", whole)
	}
}

func TestExplainServicesThatAreBusyAndGone(t *testing.T) {
	t.Parallel()
	e := setupEngine(t)
	release := make(chan struct{})
	nc, _ := e.serve(func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "count", func(ctx context.Context, chunk *numbers) error {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return reply(ctx, chunk)
		}, endpoints.Concurrency(1))
	})
	run := e.load("count", 1000, func(s *workqueue.StepSpec) { s.InFlight, s.Chunk = 100, 10 })
	e.wantOwner(e.until(run, "sent", explain.ReasonWorking), explain.OwnerService, "counter", "(holds ")
	e.wantOwner(e.until(run, "sent", explain.ReasonBusy), explain.OwnerService, "requests wait in the stream",
		"they have answered nothing in the last minute")
	nc.Close() // as if it had died
	e.wantOwner(e.until(run, "sent", explain.ReasonGone), explain.OwnerOperator, "nobody listens", "15s")
	close(release)
}

func TestExplainAConsumerThatIsPausedByHand(t *testing.T) {
	t.Parallel()
	e := setupEngine(t)
	run := e.load("count", 10, nil)
	e.until(run, "sent", explain.ReasonNoListener)
	js, err := jetstream.New(testenv.Conn(t, e.ns))
	if err != nil {
		t.Fatal(err)
	}
	// The leader ends the pause within a second, which is what the explanation says.
	e.keep(func(ctx context.Context) error {
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
	e.wantOwner(e.until(run, "sent", explain.ReasonSuspended), explain.OwnerNode, "paused the consumer", "resumes it")
}

type nothing struct{}

func TestExplainAFlowThatAsksNobody(t *testing.T) {
	t.Parallel()
	e := setupEngine(t)
	type stage = endpoints.Stage[number, number, nothing, endpoints.None]
	rates := endpoints.To[number, number]("rates")
	e.serve(func(svc *endpoints.Service) error {
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
	run := e.load("flow", 10, nil)
	e.wantOwner(e.until(run, "sent", explain.ReasonNested), explain.OwnerOperator, "flow asks endpoint rates",
		"start a service that listens on endpoint rates")
}

func TestExplainWithoutNATS(t *testing.T) {
	t.Parallel()
	e := setupEngine(t)
	sent := e.load("count", 100, nil)
	e.until(sent, "sent", explain.ReasonNoListener)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := e.ns.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	run := e.load("count", 100, nil)
	e.wantOwner(e.until(run, "ready", explain.ReasonNATSAway), explain.OwnerNode, "cannot reach NATS",
		"connects again by itself")
	e.wantOwner(e.until(sent, "sent", explain.ReasonQueued), explain.OwnerService, "replies wait until it does")
}
