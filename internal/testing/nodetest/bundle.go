// Package nodetest sets up what tests of a node and of its packages share: a node with a real PostgreSQL and a real
// NATS, services, and checks of a run's results from outside.
//
// Only tests import it. What it starts ends with the test. A test that waits fails after [Stuck]. A [Bundle] belongs
// to one test; services may use a [Ledger] concurrently.
package nodetest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Stuck exceeds the duration of anything here, also on a machine slowed down tenfold.
const Stuck = 3 * time.Minute

// Bundle is a node, a server and a database for one test.
type Bundle struct {
	Pool  *pgxpool.Pool
	Store *database.DB
	NS    testenv.Server
	Own   *embedded.NATS // equal to NS if the test has a dedicated server
	Dir   string         // where Own stores its streams
	NC    *nats.Conn
	Node  *orchestrator.Node
}

// Setup returns a node with its own database and NATS account.
func Setup(t *testing.T) *Bundle {
	t.Helper()
	return SetupOn(t, testenv.Pool(t))
}

// SetupOn is Setup with a given database.
func SetupOn(t *testing.T, pool *pgxpool.Pool) *Bundle {
	t.Helper()
	b := serversOn(t, pool, testenv.NATS(t))
	b.Node = b.StartNode(t)
	return b
}

// SetupWith is Setup with a dedicated NATS server.
func SetupWith(t *testing.T, server embedded.NATSConfig) *Bundle {
	t.Helper()
	b := OwnServer(t, server)
	b.Node = b.StartNode(t)
	return b
}

// ServersOnly is Setup without a node.
func ServersOnly(t *testing.T) *Bundle {
	t.Helper()
	return serversOn(t, testenv.Pool(t), testenv.NATS(t))
}

// OwnServer is SetupWith without a node.
func OwnServer(t *testing.T, server embedded.NATSConfig) *Bundle {
	t.Helper()
	server.StoreDir = t.TempDir() + "/nats"
	ns := testenv.OwnNATS(t, server)
	b := serversOn(t, testenv.Pool(t), ns)
	b.Own, b.Dir = ns, server.StoreDir
	return b
}

func serversOn(t *testing.T, pool *pgxpool.Pool, ns testenv.Server) *Bundle {
	t.Helper()
	return &Bundle{Pool: pool, Store: database.New(pool), NS: ns, NC: testenv.Conn(t, ns)}
}

// StartNode runs a node until the test ends.
func (b *Bundle) StartNode(t *testing.T) *orchestrator.Node {
	t.Helper()
	return b.StartNodeWith(t, orchestrator.Config{})
}

// StartNodeWith is StartNode with given settings.
func (b *Bundle) StartNodeWith(t *testing.T, cfg orchestrator.Config) *orchestrator.Node {
	t.Helper()
	cfg.Log, cfg.Version, cfg.Grace = zaptest.NewLogger(t), "test", Grace
	cfg.SessionTTL = cmp.Or(cfg.SessionTTL, SessionLife)
	cfg.Streams = stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}
	node := testenv.Must(orchestrator.New(b.Store, testenv.Conn(t, b.NS), cfg))(t)
	Run(t, "node", node.Run)
	WantReady(t, node)
	return node
}

// WantReady waits until a node has its streams.
func WantReady(t *testing.T, node *orchestrator.Node) {
	t.Helper()
	select {
	case <-node.Ready():
	case <-time.After(Stuck):
		t.Fatal("the node did not get ready")
	}
}

// Run runs f until the test ends, and checks that it stops without an error.
func Run(t *testing.T, name string, f func(context.Context) error) {
	t.Helper()
	testenv.Keep(t, t.Errorf, name, f)
}

type Account struct {
	ID string `json:"id"`
}

type Statement struct {
	Of string `json:"of"`
}

type Chunk = endpoints.Chunk[Account, Statement]

// Serve runs a service with one list endpoint until the test ends.
func (b *Bundle) Serve(t *testing.T, endpoint string,
	handle func(context.Context, *Chunk) error, options ...endpoints.Option,
) {
	t.Helper()
	ServeOn(t, testenv.Conn(t, b.NS), endpoint, handle, options...)
}

// ServeOn is Serve over a given connection.
func ServeOn(t *testing.T, nc *nats.Conn, endpoint string,
	handle func(context.Context, *Chunk) error, options ...endpoints.Option,
) {
	t.Helper()
	svc := testenv.Must(endpoints.New(nc, endpoints.Config{Name: "test", Version: "1.0.0", Log: zaptest.NewLogger(t)}))(t)
	testenv.NoError(t, endpoints.HandleList(svc, endpoint, handle, options...))
	Run(t, "service", svc.Run)
}

func Echo(_ context.Context, chunk *Chunk) error {
	for _, item := range chunk.Items() {
		item.Reply(Statement{Of: item.In.ID})
	}
	return nil
}

// Items yields n items with the keys C0, C1, ….
func Items(n int) func(*start.LoadItem) error {
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

// Request returns a run of one step, whose endpoint has the plan's name.
func Request(endpoint string) start.LoadRequest {
	return start.LoadRequest{Plan: endpoint, CreatedBy: "test", Steps: []workqueue.StepSpec{{
		Name: endpoint, Endpoint: endpoint, StepSettings: workqueue.StepSettings{Chunk: 500, InFlight: 16, MaxAttempts: 3,
			Timeout: 30 * time.Second, RetryBackoff: 10 * time.Millisecond},
	}}}
}

func (b *Bundle) Start(t *testing.T, req start.LoadRequest, n int) workqueue.RunID {
	t.Helper()
	loaded := testenv.Must(b.Node.Runs().Start(t.Context(), req, Items(n)))(t)
	testenv.MustSame(t, loaded.Items, int64(n), "items")
	return loaded.Run
}

// Outcome waits until a generation of the run is completed and returns its counts.
func (b *Bundle) Outcome(t *testing.T, run workqueue.RunID, generation int) (done, failed int64) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("run %s: %s", run, b.Dump(t, run))
		}
	}()
	Until(t, "the run is completed", func() (is bool) {
		testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT state = 'completed' AND generation = $2,
			coalesce(done, 0), coalesce(failed, 0) FROM batchrun WHERE id = $1`, run, generation).Scan(&is, &done, &failed))
		return is
	})
	return done, failed
}

// Want waits until a generation of the run is completed, and checks its counts.
func (b *Bundle) Want(t *testing.T, run workqueue.RunID, generation, done, failed int) {
	t.Helper()
	if d, f := b.Outcome(t, run, generation); d != int64(done) || f != int64(failed) {
		t.Errorf("run %s: done %d, failed %d; want %d and %d: %s", run, d, f, done, failed, b.Dump(t, run))
	}
}

func (b *Bundle) Dump(t *testing.T, run workqueue.RunID) string {
	t.Helper()
	var text string
	err := b.Pool.QueryRow(context.Background(), `
		SELECT concat_ws('; ',
		  (SELECT string_agg(format('block %s ready %s done %s failed %s', block, bit_count(ready), bit_count(done),
		     bit_count(failed)), ', ') FROM work_block WHERE run_id = $1),
		  (SELECT string_agg(format('%s %s %s n=%s', state, cause, attempt, bit_count(remaining)), ', ')
		     FROM work_slice WHERE run_id = $1))`, run).Scan(&text)
	testenv.NoError(t, err)
	return text
}

// Check fails the test if an invariant is violated.
func (b *Bundle) Check(t *testing.T) {
	t.Helper()
	WantInvariants(t, b.Store)
}

// WantInvariants fails the test if an invariant is violated, except that of the schema, which tests change.
func WantInvariants(t testing.TB, store *database.DB) {
	t.Helper()
	report := testenv.Must(doctor.New(store).Recount(context.Background()))(t)
	for _, v := range report.Violations {
		t.Errorf("invariant: %v", v)
	}
}
