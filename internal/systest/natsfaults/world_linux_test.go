package natsfaults

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/start"
)

const (
	limit = 3 * time.Minute // for anything to happen
	// timeOut of the steps: what comes again before comes for a better reason.
	timeOut = 12 * time.Minute
)

// world is a database, a NATS server somewhere, nodes and services.
type world struct {
	*testing.T
	pool  *pgxpool.Pool
	store *database.DB
	url   string // of the NATS server
	js    jetstream.JetStream
	nodes []*orchestrator.Node
}

func setup(t *testing.T, natsURL string) *world {
	t.Helper()
	pool := testenv.Pool(t)
	js, err := jetstream.New(testenv.Dial(t, natsURL))
	if err != nil {
		t.Fatal(err)
	}
	return &world{T: t, pool: pool, store: database.New(pool), url: natsURL, js: js}
}

func (w *world) dial() *nats.Conn { return testenv.Dial(w, w.url) }

// node runs a node until it is stopped, or the test ends.
func (w *world) node() (stop func()) {
	w.Helper()
	node, err := orchestrator.New(w.store, w.dial(), orchestrator.Config{Log: zaptest.NewLogger(w), Version: "test",
		Grace: 5 * time.Second, SessionTTL: time.Minute,
		Streams: stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}})
	if err != nil {
		w.Fatal(err)
	}
	stop = testenv.Keep(w, w.Errorf, "the node", node.Run)
	select {
	case <-node.Ready():
	case <-time.After(limit):
		w.Fatal("the node did not get ready")
	}
	w.nodes = append(w.nodes, node)
	return stop
}

type account struct {
	ID string `json:"id"`
}

type statement struct {
	Of string `json:"of"`
}

// service runs a service of one endpoint until the test ends.
func (w *world) service(endpoint string, handle func(context.Context, *endpoints.Chunk[account, statement]) error,
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
					other.Ask(item, account{item.Key})
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
	if err != nil {
		w.Fatal(err)
	}
	return testenv.Keep(w, w.Errorf, "the service", svc.Run)
}

// answer answers every item.
func answer(_ context.Context, chunk *endpoints.Chunk[account, statement]) error {
	for _, item := range chunk.Items() {
		item.Reply(statement{Of: item.In.ID})
	}
	return nil
}

// slow answers every item of a chunk after a while.
func slow(d time.Duration) func(context.Context, *endpoints.Chunk[account, statement]) error {
	return paced(func() time.Duration { return d })
}

func paced(takes func() time.Duration) func(context.Context, *endpoints.Chunk[account, statement]) error {
	return func(ctx context.Context, chunk *endpoints.Chunk[account, statement]) error {
		select {
		case <-time.After(takes()):
		case <-ctx.Done():
			return ctx.Err()
		}
		return answer(ctx, chunk)
	}
}

// start loads a run whose deadlines lie beyond the test.
func (w *world) start(endpoint string, items, chunk, inFlight int) workqueue.RunID {
	w.Helper()
	i := 0
	loaded, err := w.nodes[0].Runs().Start(w.Context(), start.LoadRequest{Plan: endpoint, CreatedBy: "test",
		Steps: []workqueue.StepSpec{{Name: endpoint, Endpoint: endpoint, StepSettings: workqueue.StepSettings{Chunk: chunk,
			InFlight: inFlight, MaxAttempts: 1, Timeout: timeOut, RetryBackoff: 10 * time.Millisecond}}}},
		func(item *start.LoadItem) error {
			if i == items {
				return io.EOF
			}
			item.Key = fmt.Sprintf("C%d", i)
			item.Payload = fmt.Appendf(nil, `{"id":%q}`, item.Key)
			i++
			return nil
		})
	if err != nil {
		w.Fatal(err)
	}
	return loaded.Run
}

// until polls for a condition, with a deadline.
func (w *world) until(what string, met func() bool) { w.Helper(); testenv.Until(w, limit, what, met) }

// number runs a query that returns one.
func (w *world) number(sql string, args ...any) int {
	w.Helper()
	return testenv.Number(w, w.pool, sql, args...)
}

func (w *world) done(run workqueue.RunID) int {
	w.Helper()
	return w.number(`SELECT coalesce(sum(bit_count(done | failed)), 0) FROM work_block WHERE run_id = $1`, run)
}

// wantSound waits until a run is complete and holds it against its results and the doctor.
func (w *world) wantSound(run workqueue.RunID, items int) {
	w.Helper()
	w.until("the run completes", func() bool {
		return w.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed'`, run) == 1
	})
	if n := w.number(`SELECT count(*) FROM work_part p JOIN work_queue q USING (run_id, ordinal)
		WHERE run_id = $1 AND convert_from(p.result, 'utf8')::json->>'of' = q.item_key`, run); n != items {
		w.Errorf("%d results of %d are right", n, items)
	}
	report, err := doctor.New(w.store).Doctor(context.Background())
	if err != nil {
		w.Fatal(err)
	}
	for _, v := range report.Violations {
		w.Errorf("invariant: %v", v)
	}
}

// causes counts the slices of a run by why they were made.
func (w *world) causes(run workqueue.RunID) map[string]int {
	w.Helper()
	rows, err := w.pool.Query(context.Background(),
		`SELECT cause, count(*) FROM work_slice WHERE run_id = $1 GROUP BY 1`, run)
	if err != nil {
		w.Fatal(err)
	}
	defer rows.Close()
	counts := map[string]int{}
	for rows.Next() {
		var cause string
		var n int
		if err := rows.Scan(&cause, &n); err != nil {
			w.Fatal(err)
		}
		counts[cause] = n
	}
	return counts
}
