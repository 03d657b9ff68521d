package apitest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Engine is a real node behind the API, with its own NATS account and database.
type Engine struct {
	*Bench
	Ns   testenv.Server
	Node *orchestrator.Node
}

func SetupEngine(t *testing.T) *Engine {
	t.Helper()
	ns := testenv.NATS(t)
	e := SetupEngineOn(t, testenv.Conn(t, ns), api.Config{})
	e.Ns = ns
	e.Ready()
	return e
}

// SetupEngineOn is SetupEngine on a given NATS connection. It does not wait until the node is ready.
func SetupEngineOn(t *testing.T, nc *nats.Conn, config api.Config, log ...zap.Option) *Engine {
	t.Helper()
	return SetupEngineOver(t, testenv.Pool(t), nc, config, log...)
}

// SetupEngineOver is SetupEngineOn with a given database.
func SetupEngineOver(t *testing.T, pool *pgxpool.Pool, nc *nats.Conn, config api.Config, log ...zap.Option) *Engine {
	t.Helper()
	e := &Engine{Bench: &Bench{T: t, Pool: pool, Store: database.New(pool)}}
	node, err := orchestrator.New(e.Store, nc, orchestrator.Config{Version: "test", Host: "here", Grace: time.Second,
		Log:        zap.New(zapcore.NewNopCore(), log...),
		SessionTTL: time.Minute, // a stalled machine loses no claims
		Streams:    stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}})
	testenv.NoError(t, err)
	e.Node = node
	e.Keep(node.Run)
	config.Build = buildinfo.Info{Version: "test"}
	e.Over(api.NodeOf(node), nc, config)
	return e
}

func (e *Engine) Ready() {
	e.Helper()
	select {
	case <-e.Node.Ready():
	case <-time.After(longest):
		e.Fatal("the node did not get ready")
	}
}

// Keep runs f until the end of the test, or until stop is called.
func (e *Engine) Keep(f func(context.Context) error) (stop func()) {
	return testenv.Keep(e, e.Logf, "it", f)
}

// Conn connects, even while the server restarts.
func (e *Engine) Conn() *nats.Conn {
	e.Helper()
	return testenv.Dial(e.T, e.Ns.URL(), nats.RetryOnFailedConnect(true))
}

// Number is an item of runs started by Engine.Load.
type Number struct {
	N int `json:"n"`
}

// Load starts a run of numbers.
func (e *Engine) Load(endpoint string, items int, change func(*workqueue.StepSpec)) workqueue.RunID {
	e.Helper()
	step := workqueue.StepSpec{Name: endpoint, Endpoint: endpoint, StepSettings: workqueue.StepSettings{Chunk: 10,
		InFlight: 4, MaxAttempts: 3, Timeout: time.Minute, RetryBackoff: 10 * time.Millisecond}}
	if change != nil {
		change(&step)
	}
	i := 0
	return testenv.Must(e.Node.Runs().Start(e.Context(), start.LoadRequest{Plan: endpoint, CreatedBy: "test",
		Steps: []workqueue.StepSpec{step}},
		func(item *start.LoadItem) error {
			if i == items {
				return io.EOF
			}
			item.Key, item.Payload = fmt.Sprint("C", i), fmt.Appendf(nil, `{"n":%d}`, i)
			i++
			return nil
		}))(e).Run
}

// Serve runs a service, and returns its connection and what stops it cleanly.
func (e *Engine) Serve(add func(*endpoints.Service) error) (*nats.Conn, func()) {
	e.Helper()
	nc := e.Conn()
	svc := testenv.Must(endpoints.New(nc, endpoints.Config{Name: "counter", Version: "1.0.0", Log: zap.NewNop()}))(e)
	testenv.NoError(e, add(svc))
	return nc, e.Keep(svc.Run)
}

type Numbers = endpoints.Chunk[Number, Number]

func Reply(_ context.Context, chunk *Numbers) error {
	for _, item := range chunk.Items() {
		item.Reply(item.In)
	}
	return nil
}

// Explain explains a run, and checks that the explanation is complete.
func (e *Engine) Explain(run workqueue.RunID, key string) health.Explanation {
	e.Helper()
	var out health.Explanation
	query := ""
	if key != "" {
		query = "?item=" + url.QueryEscape(key)
	}
	e.Read("/runs/"+run.String()+"/explain"+query, &out)
	e.AnswersAll(out.Groups, out.Missing)
	return out
}

// AnswersAll checks that the groups add up and each names an owner.
func (e *Engine) AnswersAll(groups []health.MissingGroup, missing int64) {
	e.Helper()
	var sum int64
	for i := range groups {
		g := &groups[i]
		sum += g.Items
		if g.Owner == "" || g.Who == "" || g.Why == "" || g.Next == "" || g.Reason == "" || g.Since == nil ||
			g.Owner == health.OwnerOperator && len(g.Advice) == 0 {
			e.Errorf("the group leaves a question open: %+v", *g)
		}
		if strings.Contains(strings.ToLower(g.Who+g.Why+g.Next), "unknown") || g.Reason == health.ReasonStray {
			e.Errorf("the group says that it does not know: %+v", *g)
		}
	}
	testenv.Same(e, sum, missing, "items of the groups")
}

// Until explains a run until a group has the reason and contains the texts, and returns it. What services report may
// arrive after the first explanation.
func (e *Engine) Until(
	run workqueue.RunID, state string, reason health.Kind, says ...string,
) (found health.MissingGroup) {
	e.Helper()
	var last health.Explanation
	for deadline := time.Now().Add(longest); time.Now().Before(deadline); {
		last = e.Explain(run, "")
		for _, g := range last.Groups {
			text := fmt.Sprintln(g.Who, g.Why, g.Next, g.Advice)
			silent := func(want string) bool { return !strings.Contains(text, want) }
			if g.Reason == reason && g.State == state && !slices.ContainsFunc(says, silent) {
				return g
			}
		}
	}
	text, _ := json.MarshalIndent(last, "", " ")
	e.Fatalf("nothing is %s for %s, and says %q: %s", state, reason, says, text)
	return found
}

// WantOwner is Until, and wants the group to have an owner.
func (e *Engine) WantOwner(
	run workqueue.RunID, state string, reason health.Kind, owner health.Owner, says ...string,
) {
	e.Helper()
	if g := e.Until(run, state, reason, says...); g.Owner != owner {
		e.Errorf("it is %s's turn; want %s: %+v", g.Owner, owner, g)
	}
}
