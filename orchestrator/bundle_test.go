package orchestrator_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/start"
)

// stuck is more than anything here takes on a machine that others slow down tenfold: what takes longer will not happen.
const stuck = 3 * time.Minute

// bundle is a node, a server and a database for one test.
type bundle struct {
	pool  *pgxpool.Pool
	store *database.DB
	ns    *embedded.NATS
	dir   string // where the server keeps its streams
	nc    *nats.Conn
	node  *orchestrator.Node
}

func setup(t *testing.T) *bundle {
	t.Helper()
	return setupOn(t, testenv.Pool(t))
}

// setupOn is setup with a database of the test's choice.
func setupOn(t *testing.T, pool *pgxpool.Pool) *bundle {
	t.Helper()
	return setupWith(t, pool, embedded.NATSConfig{})
}

// setupWith is setup with a database and a NATS server of the test's choice.
func setupWith(t *testing.T, pool *pgxpool.Pool, server embedded.NATSConfig) *bundle {
	t.Helper()
	b := serversOnly(t, pool, server)
	b.node = b.startNode(t)
	return b
}

// serversOnly is setupWith without a node.
func serversOnly(t *testing.T, pool *pgxpool.Pool, server embedded.NATSConfig) *bundle {
	t.Helper()
	dir := t.TempDir() + "/nats"
	server.StoreDir = dir
	ns := testenv.NATSWith(t, server)
	return &bundle{pool: pool, store: database.New(pool), ns: ns, dir: dir, nc: testenv.Conn(t, ns)}
}

// startNode runs a node until the end of the test.
func (b *bundle) startNode(t *testing.T) *orchestrator.Node {
	t.Helper()
	return b.startNodeWith(t, orchestrator.Config{})
}

// startNodeWith is startNode with settings of the test's choice.
func (b *bundle) startNodeWith(t *testing.T, cfg orchestrator.Config) *orchestrator.Node {
	t.Helper()
	cfg.Log, cfg.Version, cfg.Grace = zaptest.NewLogger(t), "test", 5*time.Second
	cfg.SessionTTL = cmp.Or(cfg.SessionTTL, sessionLife)
	cfg.Streams = stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}
	node, err := orchestrator.New(b.store, testenv.Conn(t, b.ns), cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "node", node.Run)
	wantReady(t, node)
	return node
}

// wantReady waits until a node has its streams.
func wantReady(t *testing.T, node *orchestrator.Node) {
	t.Helper()
	select {
	case <-node.Ready():
	case <-time.After(stuck):
		t.Fatal("the node did not get ready")
	}
}

// run keeps f going until the end of the test, and checks that it stops without an error.
func run(t *testing.T, name string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

type account struct {
	ID string `json:"id"`
}

type statement struct {
	Of string `json:"of"`
}

// serve runs a service with one list endpoint until the end of the test.
func (b *bundle) serve(t *testing.T, endpoint string,
	handle func(context.Context, *endpoints.Chunk[account, statement]) error, options ...endpoints.Option,
) {
	t.Helper()
	serveOn(t, testenv.Conn(t, b.ns), endpoint, handle, options...)
}

// serveOn is serve over a connection of the test's choice.
func serveOn(t *testing.T, nc *nats.Conn, endpoint string,
	handle func(context.Context, *endpoints.Chunk[account, statement]) error, options ...endpoints.Option,
) {
	t.Helper()
	svc, err := endpoints.New(nc, endpoints.Config{Name: "test", Version: "1.0.0", Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := endpoints.HandleList(svc, endpoint, handle, options...); err != nil {
		t.Fatal(err)
	}
	run(t, "service", svc.Run)
}

// echo answers every item.
func echo(_ context.Context, chunk *endpoints.Chunk[account, statement]) error {
	for _, item := range chunk.Items() {
		item.Reply(statement{Of: item.In.ID})
	}
	return nil
}

// items yields n items with the keys C0, C1, ….
func items(n int) func(*start.LoadItem) error {
	i := 0
	return func(item *start.LoadItem) error {
		if i == n {
			return io.EOF
		}
		item.Key = "C" + strconv.Itoa(i)
		item.Payload = fmt.Appendf(nil, `{"id":%q}`, item.Key)
		item.Line = i + 2
		i++
		return nil
	}
}

func request(endpoint string) start.LoadRequest {
	return start.LoadRequest{Plan: endpoint, CreatedBy: "test", Steps: []workqueue.StepSpec{{
		Name: endpoint, Endpoint: endpoint, StepSettings: workqueue.StepSettings{Chunk: 500, InFlight: 16, MaxAttempts: 3,
			Timeout: 30 * time.Second, RetryBackoff: 10 * time.Millisecond},
	}}}
}

// start loads a run of n items.
func (b *bundle) start(t *testing.T, req start.LoadRequest, n int) workqueue.RunID {
	t.Helper()
	loaded, err := b.node.Starts().Start(t.Context(), req, items(n))
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Items != int64(n) {
		t.Fatalf("loaded %d items of %d", loaded.Items, n)
	}
	return loaded.Run
}

// outcome waits until a generation of the run is completed and returns its counts.
func (b *bundle) outcome(t *testing.T, run workqueue.RunID, generation int) (done, failed int64) {
	t.Helper()
	deadline := time.Now().Add(stuck)
	for time.Now().Before(deadline) {
		var state string
		var gen int
		err := b.pool.QueryRow(t.Context(), `SELECT state, generation, coalesce(done, 0), coalesce(failed, 0)
			FROM batchrun WHERE id = $1`, run).Scan(&state, &gen, &done, &failed)
		if err != nil {
			t.Fatal(err)
		}
		if state == "completed" && gen == generation {
			return done, failed
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the test ended")
		}
	}
	t.Fatalf("run %s is not completed: %s", run, b.dump(t, run))
	return 0, 0
}

// dump says where the items of a run are.
func (b *bundle) dump(t *testing.T, run workqueue.RunID) string {
	t.Helper()
	var text string
	err := b.pool.QueryRow(context.Background(), `
		SELECT concat_ws('; ',
		  (SELECT string_agg(format('block %s ready %s done %s failed %s', block, bit_count(ready), bit_count(done),
		     bit_count(failed)), ', ') FROM work_block WHERE run_id = $1),
		  (SELECT string_agg(format('%s %s %s n=%s', state, cause, attempt, bit_count(remaining)), ', ')
		     FROM work_slice WHERE run_id = $1))`, run).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// check fails the test when the invariants do not hold.
func (b *bundle) check(t *testing.T) {
	t.Helper()
	report, err := doctor.New(b.store).Doctor(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range report.Violations {
		t.Errorf("invariant: %v", v)
	}
}
