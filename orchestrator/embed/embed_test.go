package embed_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/orchestrator/embed"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// A program whose function makes a letter of each item, and which can be looked at on port 8090.
func Example() {
	letter := func(_ context.Context, item *fetch.Item) (fetch.Part, error) {
		return fetch.Part{Data: []byte("Dear " + item.Key), ContentType: "text/plain"}, nil
	}
	run := func(ctx context.Context) error {
		nc, err := endpoints.Connect() // NATS_URL, or the server of tranche serve
		if err != nil {
			return err
		}
		defer nc.Close()
		node, err := embed.Open(ctx, embed.Config{
			Database: os.Getenv("TRANCHE_DATABASE"), NATS: nc, Version: "letters",
			Locals: map[string]fetch.Fetcher{"letter": fetch.Each(letter)},
			API:    &embed.APIConfig{Listen: "127.0.0.1:8090"},
		})
		if err != nil {
			return err
		}
		defer node.Close()
		return node.Run(ctx)
	}
	_ = run // with a context that ends when the program is to stop
}

// A run is started and looked at by the API of a program, whose node does the work.
func TestNodeWithItsAPI(t *testing.T) {
	t.Parallel()
	greet := func(_ context.Context, item *fetch.Item) (fetch.Part, error) {
		return fetch.JSON("hello " + item.Key)
	}
	config := embed.Config{
		Database: testenv.Database(t), NATS: testenv.Conn(t, testenv.NATS(t)), Version: "test",
		Locals: map[string]fetch.Fetcher{"greet": fetch.Each(greet)},
	}
	ctx, stop := context.WithCancel(t.Context())
	begin := func(set embed.APIConfig) string {
		config.API = &set
		node := testenv.Must(embed.Open(ctx, config))(t)
		ran := make(chan error, 1)
		go func() { ran <- node.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-ran; err != nil {
				t.Error(err)
			}
			node.Close()
		})
		<-node.Ready()
		return "http://" + node.Address().String()
	}
	guarded := begin(embed.APIConfig{Listen: "127.0.0.1:0"})
	open := begin(embed.APIConfig{Listen: "127.0.0.1:0", Anonymous: true})
	for path, want := range map[string]int{"/": http.StatusOK, "/api/v1/runs": http.StatusUnauthorized} {
		testenv.Same(t, get(t, guarded+path), want, "GET %s without a token", path)
	}
	api := testenv.Must(client.New(open))(t)
	started, err := api.Start(ctx, client.RunSettings{Plan: "steps:\n- local: greet\n", PlanName: "greetings", Key: "key"},
		strings.NewReader("key\nann\nbob\n"))
	testenv.NoError(t, err)
	run, err := api.Wait(ctx, started.Run)
	if err != nil || run.State != client.RunCompleted || run.Done != 2 {
		t.Errorf("%+v, %v; want two items done", run, err)
	}
}

// A program has the node's metrics in a registry of its own, or else at the node's API.
func TestMetricsOfAnEmbeddedNode(t *testing.T) {
	t.Parallel()
	config := embed.Config{Database: testenv.Database(t), NATS: testenv.Conn(t, testenv.NATS(t)),
		API: &embed.APIConfig{Listen: "127.0.0.1:0", Anonymous: true}}
	for _, registry := range []*prometheus.Registry{nil, prometheus.NewRegistry()} {
		want := http.StatusOK
		if registry != nil {
			config.Metrics, want = registry, http.StatusNotFound
		}
		ctx, stop := context.WithCancel(t.Context())
		node := testenv.Must(embed.Open(ctx, config))(t)
		ran := make(chan error, 1)
		go func() { ran <- node.Run(ctx) }()
		<-node.Ready()
		testenv.Same(t, get(t, "http://"+node.Address().String()+"/metrics"), want, "GET /metrics")
		if registry != nil {
			found, err := registry.Gather()
			if err != nil || len(found) < 20 {
				t.Errorf("%d metrics are in the program's registry, %v", len(found), err)
			}
			if second, err := embed.Open(ctx, config); err == nil || !strings.Contains(err.Error(), "Config.Metrics") {
				t.Errorf("a second node in the same registry: %v, %v", second, err)
			}
		}
		stop()
		testenv.NoError(t, <-ran)
		node.Close()
	}
}

func TestWhatCannotBeOpened(t *testing.T) {
	t.Parallel()
	nc, database := testenv.Conn(t, testenv.NATS(t)), testenv.Database(t)
	everywhere := &embed.APIConfig{Listen: "0.0.0.0:0", Anonymous: true}
	for want, config := range map[string]embed.Config{
		"Config.NATS are needed":  {Database: database},
		"Config.Database":         {NATS: nc},
		"open Tranche's database": {Database: "postgres://127.0.0.1:1/none", NATS: nc},
		"0.0.0.0:0":               {Database: database, NATS: nc, API: everywhere},
		"is not host:port":        {Database: database, NATS: nc, API: &embed.APIConfig{Listen: "here"}},
	} {
		if node, err := embed.Open(t.Context(), config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, %v; want %s", node, err, want)
		}
	}
}

func get(t *testing.T, url string) int {
	t.Helper()
	req := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	answer := testenv.Must(http.DefaultClient.Do(req))(t)
	_ = answer.Body.Close()
	return answer.StatusCode
}
