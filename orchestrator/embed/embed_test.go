package embed_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/orchestrator/embed"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// The page has the program as it is, which is compiled.
func TestThePageHasTheProgram(t *testing.T) {
	t.Parallel()
	page := testenv.Must(os.ReadFile("../../docs/embed.md"))(t)
	program := testenv.Must(os.ReadFile("../../examples/embed/main.go"))(t)
	if !strings.Contains(string(page), "```go\n"+string(program)+"```\n") {
		t.Error("docs/embed.md does not have examples/embed/main.go")
	}
}

// A run that is started in the program's transaction is there with its rows, or not at all; http and sql steps are done
// as by tranche serve.
func TestStartsInATransaction(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	pool := testenv.Connect(t, url)
	answers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"at":"Bergen"}`))
	}))
	defer answers.Close()
	file := filepath.Join(t.TempDir(), "connections.yaml")
	allowed := fmt.Sprintf("http: {allow_private: [%q]}\n", strings.TrimPrefix(answers.URL, "http://"))
	testenv.NoError(t, os.WriteFile(file, []byte(allowed), 0o600))
	node := testenv.Must(embed.New(pool, testenv.Conn(t, testenv.NATS(t)), embed.Config{Connections: file}))(t)
	set := client.RunSettings{PlanName: "branches", IdempotencyKey: "order-7",
		Plan: `steps: [{name: branch, http: {url: "` +
			answers.URL + `/{key}"}}]`}
	start := func(items string, end func(pgx.Tx) error) (client.Started, error) {
		tx := testenv.Must(pool.Begin(t.Context()))(t)
		started, err := node.StartTx(t.Context(), tx, set, strings.NewReader(items))
		testenv.NoError(t, end(tx))
		return started, err
	}
	commit := func(tx pgx.Tx) error { return tx.Commit(t.Context()) }
	_, err := start("id\na\n", commit)
	testenv.Says(t, err, "not started yet", "a start before the node is ready")
	stop := testenv.Keep(t, t.Errorf, "the node", node.Run)
	<-node.Ready()
	_, err = start("id\na\nb\n", func(tx pgx.Tx) error { return tx.Rollback(t.Context()) })
	testenv.NoError(t, err)
	for items, want := range map[string]string{"": "input is empty", "id\na\na\n": `key "a"`} {
		_, err = start(items, commit)
		testenv.Says(t, err, want, "a start")
	}
	testenv.Same(t, testenv.Number(t, pool, `SELECT count(*) FROM batchrun`), 0, "runs")
	started := testenv.Must(start("id\na\nb\n", commit))(t)
	again := testenv.Must(start("id\na\nb\n", commit))(t)
	if again.Run != started.Run || !again.Existing || started.Items != 2 {
		t.Errorf("%+v, then %+v", started, again)
	}
	testenv.Until(t, time.Minute, "the run is done", func() bool {
		return testenv.Number(t, pool, `SELECT count(*) FROM run_item_parts WHERE result->>'at' = 'Bergen'`) == 2
	})
	stop()
	node.Close()
}

// A run is started and looked at by the API of a program, whose node does the work.
func TestNodeWithItsAPI(t *testing.T) {
	t.Parallel()
	greet := func(_ context.Context, item *fetch.Item) (fetch.Part, error) { return fetch.JSON("hello " + item.Key) }
	pool, nc := testenv.Pool(t), testenv.Conn(t, testenv.NATS(t))
	config := embed.Config{
		Version: "test",
		Locals:  map[string]fetch.Fetcher{"greet": fetch.Each(greet)},
	}
	ctx := t.Context()
	begin := func(set embed.APIConfig) string {
		config.API = &set
		node := testenv.Must(embed.New(pool, nc, config))(t)
		t.Cleanup(node.Close)
		testenv.Keep(t, t.Errorf, "the node", node.Run)
		<-node.Ready()
		return "http://" + node.Address().String()
	}
	guarded := begin(embed.APIConfig{Listen: "127.0.0.1:0", FourEyes: []string{"erase"}, TokenMaxAge: time.Hour})
	open := begin(embed.APIConfig{Listen: "127.0.0.1:0", Anonymous: true})
	for path, want := range map[string]int{"/": http.StatusOK, "/api/v1/runs": http.StatusUnauthorized} {
		testenv.Same(t, get(t, guarded+path), want, "GET %s without a token", path)
	}
	api := testenv.Must(client.New(open))(t)
	ann := testenv.Must(api.CreateToken(ctx, client.TokenSettings{Name: "ann", Role: "admin"}))(t)
	admin := testenv.Must(client.New(guarded, client.WithToken(ann.Secret)))(t)
	_, err := admin.Erase(ctx, client.EraseSettings{Key: "bob"})
	_ = testenv.As[*client.ActPendingError](t, err, "one administrator erases")
	_, err = admin.CreateToken(ctx, client.TokenSettings{Name: "carl", Role: "viewer", ExpiresIn: "2h"})
	testenv.Says(t, err, "--token-max-age", "a token for two hours")
	started, err := api.Start(ctx, client.RunSettings{Plan: "steps:\n- local: greet\n", PlanName: "greetings", Key: "key"},
		strings.NewReader("key\nann\nbob\n"))
	testenv.NoError(t, err)
	run, err := api.Wait(ctx, started.Run)
	if err != nil || run.State != client.RunCompleted || run.Done != 2 {
		t.Errorf("%+v, %v; want two items done", run, err)
	}
	_, err = api.ApplyCollector(ctx, client.ApplyCollectorParams{Name: "greeted"}, "application/yaml",
		strings.NewReader("endpoint: nobody\nenrich: {local: greet}\n"))
	testenv.NoError(t, err)
	testenv.Must(api.AddOperations(ctx, "greeted", client.AddOperationsParams{}, "application/x-ndjson",
		strings.NewReader(`{"key":"ann","payload":1}`)))(t)
	var stored string
	testenv.NoError(t, pool.QueryRow(ctx, `SELECT payload FROM collector_op`).Scan(&stored))
	testenv.Same(t, stored, `"hello ann"`, "what the node's function makes of an operation")
	_, err = nc.Request("tranche.collect.greeted", []byte(`{"key":"bob","payload":1}`), time.Minute)
	testenv.Is(t, err, nats.ErrNoResponders, "it takes none over NATS, which serve does")
}

// A program has the node's metrics in a registry of its own, or else at the node's API.
func TestMetricsOfAnEmbeddedNode(t *testing.T) {
	t.Parallel()
	pool, nc := testenv.Pool(t), testenv.Conn(t, testenv.NATS(t))
	config := embed.Config{API: &embed.APIConfig{Listen: "127.0.0.1:0", Anonymous: true}}
	for _, registry := range []*prometheus.Registry{nil, prometheus.NewRegistry()} {
		want := http.StatusOK
		if registry != nil {
			config.Metrics, want = registry, http.StatusNotFound
		}
		node := testenv.Must(embed.New(pool, nc, config))(t)
		stop := testenv.Keep(t, t.Errorf, "the node", node.Run)
		<-node.Ready()
		testenv.Same(t, get(t, "http://"+node.Address().String()+"/metrics"), want, "GET /metrics")
		if registry != nil {
			found, err := registry.Gather()
			if err != nil || len(found) < 20 {
				t.Errorf("%d metrics are in the program's registry, %v", len(found), err)
			}
			if second, err := embed.New(pool, nc, config); err == nil || !strings.Contains(err.Error(), "Config.Metrics") {
				t.Errorf("a second node in the same registry: %v, %v", second, err)
			}
		}
		stop()
		node.Close()
	}
}

func TestWhatCannotBeOpened(t *testing.T) {
	t.Parallel()
	nc, pool := testenv.Conn(t, testenv.NATS(t)), testenv.Pool(t)
	away := testenv.Must(pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none"))(t)
	defer away.Close()
	api := func(listen string, fourEyes ...string) embed.Config {
		return embed.Config{API: &embed.APIConfig{Listen: listen, Anonymous: true, FourEyes: fourEyes}}
	}
	unreadable := embed.Config{Connections: "none.yaml"}
	for want, made := range map[string]func() (*embed.Node, error){
		"a NATS connection are needed": func() (*embed.Node, error) { return embed.New(pool, nil, embed.Config{}) },
		"a pool and":                   func() (*embed.Node, error) { return embed.New(nil, nc, embed.Config{}) },
		"open Tranche's database":      func() (*embed.Node, error) { return embed.New(away, nc, embed.Config{}) },
		"0.0.0.0:0":                    func() (*embed.Node, error) { return embed.New(pool, nc, api("0.0.0.0:0")) },
		"--four-eyes":                  func() (*embed.Node, error) { return embed.New(pool, nc, api("0.0.0.0:0", "erase")) },
		"is not host:port":             func() (*embed.Node, error) { return embed.New(pool, nc, api("here")) },
		"none.yaml":                    func() (*embed.Node, error) { return embed.New(pool, nc, unreadable) },
	} {
		node, err := made()
		testenv.Says(t, err, want, "%v", node)
	}
}

func get(t *testing.T, url string) int {
	t.Helper()
	code, _ := testenv.Get(t, url)
	return code
}
