package servers

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/start"
)

const (
	limit = 3 * time.Minute // for anything to happen
	// timeOut of the steps: what comes again before comes for a better reason.
	timeOut = 12 * time.Minute
)

type (
	account   = nodetest.Account
	statement = nodetest.Statement
)

// world is a database, a NATS server somewhere, nodes and services.
type world struct {
	*testing.T
	*nodetest.Bundle
	url   string // of the NATS server
	js    jetstream.JetStream
	nodes []*orchestrator.Node
}

func setup(t *testing.T, natsURL string) *world {
	t.Helper()
	pool, nc := testenv.Pool(t), testenv.Dial(t, natsURL)
	return &world{T: t, Bundle: &nodetest.Bundle{Pool: pool, Store: database.New(pool), NC: nc}, url: natsURL,
		js: nodetest.JetStream(t, nc)}
}

func (w *world) dial() *nats.Conn { return testenv.Dial(w, w.url) }

// node runs a node until it is stopped, or the test ends.
func (w *world) node() (stop func()) {
	w.Helper()
	node, err := orchestrator.New(w.Store, w.dial(), orchestrator.Config{Log: zaptest.NewLogger(w), Version: "test",
		Grace: 5 * time.Second, SessionTTL: time.Minute,
		Streams: stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}})
	testenv.NoError(w, err)
	stop = testenv.Keep(w, w.Errorf, "the node", node.Run)
	nodetest.WantReady(w.T, node)
	w.nodes = append(w.nodes, node)
	return stop
}

// service runs a service of one endpoint until the test ends.
func (w *world) service(endpoint string, handle func(context.Context, *nodetest.Chunk) error,
	options ...endpoints.Option,
) {
	w.Helper()
	w.serve(func(svc *endpoints.Service) error { return endpoints.HandleList(svc, endpoint, handle, options...) })
}

// flow runs a service whose endpoint asks another one for each of its items.
func (w *world) flow(endpoint, asked string) (stop func()) {
	w.Helper()
	type stage = endpoints.Stage[account, statement, endpoints.None, endpoints.None]
	other := endpoints.To[account, statement](asked)
	return w.serve(func(svc *endpoints.Service) error {
		return endpoints.HandleFlow(svc, endpoint, []func(context.Context, *stage) error{
			func(_ context.Context, s *stage) error {
				for _, item := range s.Items() {
					other.Ask(item, account{ID: item.Key})
				}
				return nil
			},
			func(_ context.Context, s *stage) error {
				for _, item := range s.Items() {
					item.Reply(other.Answer(item))
				}
				return nil
			},
		})
	})
}

func (w *world) serve(handle func(*endpoints.Service) error) (stop func()) {
	w.Helper()
	svc, err := endpoints.New(w.dial(), endpoints.Config{Name: "test", Version: "1.0.0", Log: zaptest.NewLogger(w)})
	if err == nil {
		err = handle(svc)
	}
	testenv.NoError(w, err)
	return testenv.Keep(w, w.Errorf, "the service", svc.Run)
}

// slow answers every item of a chunk after a while.
func slow(d time.Duration) func(context.Context, *nodetest.Chunk) error {
	return paced(func() time.Duration { return d })
}

func paced(takes func() time.Duration) func(context.Context, *nodetest.Chunk) error {
	return func(ctx context.Context, chunk *nodetest.Chunk) error {
		select {
		case <-time.After(takes()):
		case <-ctx.Done():
			return ctx.Err()
		}
		return nodetest.Echo(ctx, chunk)
	}
}

// start loads a run whose deadlines lie beyond the test.
func (w *world) start(endpoint string, items, chunk, inFlight int) workqueue.RunID {
	w.Helper()
	loaded := testenv.Must(w.nodes[0].Runs().Start(w.Context(), start.LoadRequest{Plan: endpoint, CreatedBy: "test",
		Steps: []workqueue.StepSpec{{Name: endpoint, Endpoint: endpoint, StepSettings: workqueue.StepSettings{Chunk: chunk,
			InFlight: inFlight, MaxAttempts: 1, Timeout: timeOut, RetryBackoff: 10 * time.Millisecond}}}},
		nodetest.Items(items)))(w)
	return loaded.Run
}

func (w *world) until(what string, met func() bool) { w.Helper(); testenv.Until(w, limit, what, met) }

func (w *world) number(sql string, args ...any) int {
	w.Helper()
	return testenv.Number(w, w.Pool, sql, args...)
}

func (w *world) done(run workqueue.RunID) int {
	w.Helper()
	return w.number(`SELECT coalesce(sum(bit_count(done | failed)), 0) FROM work_block WHERE run_id = $1`, run)
}

// wantSound waits until a run is complete and holds it against its results and the doctor.
func (w *world) wantSound(run workqueue.RunID, items int) {
	w.Helper()
	w.Outcome(w.T, run, 1)
	w.WantRight(w.T, run, items)
	w.Check(w.T)
}

// causes counts the slices of a run by why they were made.
func (w *world) causes(run workqueue.RunID) map[string]int {
	w.Helper()
	rows := testenv.Must(w.Pool.Query(context.Background(),
		`SELECT cause, count(*) FROM work_slice WHERE run_id = $1 GROUP BY 1`, run))(w)
	defer rows.Close()
	counts := map[string]int{}
	for rows.Next() {
		var cause string
		var n int
		testenv.NoError(w, rows.Scan(&cause, &n))
		counts[cause] = n
	}
	return counts
}

// TestMain lets NATS servers be: one that ends while it makes its copy of a stream leaves that copy's loop running, and
// the clock of all stores.
func TestMain(m *testing.M) {
	if dir := os.Getenv(natsDiskVariable); dir != "" {
		if err := beNATSOnDisk(dir); err != nil {
			fmt.Fprintln(os.Stderr, "NATS server:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	const server = "github.com/nats-io/nats-server/v2/server"
	testenv.Main(m, goleak.IgnoreTopFunction(server+".(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction(server+"/ats.Register.func1"))
}
