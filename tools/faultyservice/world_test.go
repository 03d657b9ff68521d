package faultyservice

import (
	"context"
	"fmt"
	"io"
	"math/bits"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/start"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	name = "statement"
	// limit is for anything to happen. It tells what hangs from what is slow, on a busy machine under the race detector,
	// too; the bench says how long things take.
	limit = 3 * time.Minute
)

// world is a node, a server and a database for one test.
type world struct {
	*testing.T
	pool  *pgxpool.Pool
	store *database.DB
	ns    testenv.Server
	node  *orchestrator.Node
}

func setup(t *testing.T) *world {
	t.Helper()
	pool := testenv.Pool(t)
	w := &world{T: t, pool: pool, store: database.New(pool), ns: testenv.NATS(t)}
	w.node = w.startNode()
	return w
}

func (w *world) startNode() *orchestrator.Node {
	w.Helper()
	node, err := orchestrator.New(w.store, testenv.Conn(w, w.ns), orchestrator.Config{
		Log:     zaptest.NewLogger(w, zaptest.Level(zap.ErrorLevel)),
		Version: "test", Grace: 5 * time.Second, Poll: 100 * time.Millisecond,
		SessionTTL: time.Minute, // what comes again comes for what services do
		Streams:    stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20},
	})
	if err != nil {
		w.Fatal(err)
	}
	w.keep("node", node.Run)
	select {
	case <-node.Ready():
	case <-time.After(limit):
		w.Fatal("the node did not get ready")
	}
	return node
}

// keep has f going until the end of the test, and checks that it stops without an error.
func (w *world) keep(what string, f func(context.Context) error) { testenv.Keep(w, w.Errorf, what, f) }

// serve runs a service until the end of the test.
func (w *world) serve(cfg Config) *Ledger {
	w.Helper()
	if cfg.Endpoint == "" {
		cfg.Endpoint = name
	}
	svc, err := New(testenv.Conn(w, w.ns), cfg)
	if err != nil {
		w.Fatal(err)
	}
	w.keep("service", svc.Run)
	return svc.Ledger()
}

// plan is the settings of the runs here: small pauses, so that tests are quick.
func plan(change ...func(*start.LoadRequest)) start.LoadRequest {
	req := start.LoadRequest{Plan: name, CreatedBy: "test", Steps: []workqueue.StepSpec{{
		Name: name, Endpoint: name, StepSettings: workqueue.StepSettings{Chunk: 500, InFlight: 16, MaxAttempts: 3,
			Timeout: 2 * limit, RetryBackoff: 10 * time.Millisecond}, // who waits for it is too late
	}}}
	for _, f := range change {
		f(&req)
	}
	return req
}

// at names another endpoint.
func at(endpoint string) func(*start.LoadRequest) {
	return func(r *start.LoadRequest) { r.Steps[0].Endpoint = endpoint }
}

// endpointOf makes an endpoint's name of that of a case.
func endpointOf(name string) string {
	return strings.NewReplacer(" ", "-", ",", "").Replace(name)
}

// in is the same world for a subtest.
func (w *world) in(t *testing.T) *world {
	t.Helper()
	inner := *w
	inner.T = t
	return &inner
}

// automatic leaves the pace to the nodes.
func automatic(req *start.LoadRequest) {
	req.Steps[0].InFlight, req.Steps[0].InFlightAuto = 1024, true
}

// start makes a run of n items, each with its key as payload.
func (w *world) start(n int, req start.LoadRequest) workqueue.RunID {
	w.Helper()
	i := 0
	loaded, err := w.node.Runs().Start(w.Context(), req, func(item *start.LoadItem) error {
		if i == n {
			return io.EOF
		}
		item.Key = "C" + strconv.Itoa(i)
		item.Payload = fmt.Appendf(nil, `{"id":%q}`, item.Key)
		i++
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	return loaded.Run
}

// number runs a query that returns one.
func (w *world) number(sql string, args ...any) int {
	w.Helper()
	return testenv.Number(w, w.pool, sql, args...)
}

func (w *world) text(sql string, args ...any) (s string) {
	w.Helper()
	if err := w.pool.QueryRow(context.Background(), sql, args...).Scan(&s); err != nil {
		w.Fatal(err)
	}
	return s
}

// until polls for a condition, with a deadline.
func (w *world) until(what string, met func() bool) {
	w.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-deadline:
			w.Fatalf("waited in vain until %s: %s", what, w.situation())
		}
	}
}

// situation says where the items of all runs are.
func (w *world) situation() string {
	return w.text(`SELECT concat_ws(E'\n',
		(SELECT string_agg(format('run %s %s, hold %s', id, state, hold), E'\n') FROM batchrun),
		(SELECT string_agg(format('block %s: ready %s done %s failed %s of %s', block, bit_count(ready), bit_count(done),
		   bit_count(failed), size), E'\n') FROM work_block),
		(SELECT string_agg(format('%s slices %s %s of %s items', n, state, cause, items), E'\n')
		   FROM (SELECT count(*) AS n, state, cause, sum(bit_count(remaining)) AS items FROM work_slice
		         GROUP BY state, cause) s),
		(SELECT string_agg(format('%s: breaker %s %s, in flight %s, rate %s, chunk %s, cap %s', endpoint, breaker,
		   breaker_reason, in_flight, rate, chunk, chunk_cap), E'\n') FROM endpoint_pace),
		(SELECT string_agg(format('%s %s: %s -> %s: %s', endpoint, what, before, after, reason), E'\n' ORDER BY id)
		   FROM endpoint_change))`)
}

// completed waits until a run has completed its first generation, and returns its counts.
func (w *world) completed(run workqueue.RunID) (done, failed int) {
	w.Helper()
	w.until("the run completes", func() bool {
		return w.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed'`, run) == 1
	})
	return w.number(`SELECT done FROM batchrun WHERE id = $1`, run),
		w.number(`SELECT failed FROM batchrun WHERE id = $1`, run)
}

// wantSound waits for a run's end and holds it against what is known from outside: its counts, its results, the
// ledger. No item was executed for a slice that did not hold it.
func (w *world) wantSound(run workqueue.RunID, ledger *Ledger, done, failed int) {
	w.Helper()
	if d, f := w.completed(run); d != done || f != failed {
		w.Errorf("%d done and %d failed; want %d and %d\n%s", d, f, done, failed, w.situation())
	}
	right := w.number(`SELECT count(*) FROM work_result p JOIN work_queue q USING (run_id, ordinal)
		WHERE run_id = $1 AND convert_from(p.result, 'utf8')::json->>'id' = q.item_key`, run)
	if right != done {
		w.Errorf("%d results of %d are right", right, done)
	}
	if n := w.number(`SELECT count(*) FROM run_event WHERE run_id = $1 AND kind = 'completed'`, run); n != 1 {
		w.Errorf("completion was told %d times", n)
	}
	if n := len(ledger.Times(uuid.UUID(run), 1)); n != done+failed {
		w.Errorf("%d items were executed of %d", n, done+failed)
	}
	w.wantAsked(ledger)
}

// wantInvariants looks at the whole database.
func (w *world) wantInvariants() {
	w.Helper()
	report, err := doctor.New(w.store).Doctor(context.Background())
	if err != nil {
		w.Fatal(err)
	}
	for _, v := range report.Violations {
		w.Errorf("invariant: %v", v)
	}
}

// wantAsked checks that each chunk of the ledger is what its slice was asked for.
func (w *world) wantAsked(ledger *Ledger) {
	w.Helper()
	var slices []uuid.UUID
	var ordinals []int
	for _, e := range ledger.Entries() {
		for _, ordinal := range e.Ordinals {
			slices, ordinals = append(slices, e.Slice), append(ordinals, ordinal)
		}
	}
	stray := w.number(`SELECT count(*) FROM unnest($1::uuid[], $2::int[]) AS u (slice, ordinal)
		LEFT JOIN work_slice s ON s.id = u.slice AND s.block = u.ordinal / 8192
		WHERE s.id IS NULL OR get_bit(s.mask, u.ordinal % 8192) = 0`, slices, ordinals)
	if stray != 0 {
		w.Errorf("%d executions were of items that no such slice held", stray)
	}
}

// wantFired fails the test when what it is about did not happen.
func (w *world) wantFired(ledger *Ledger, f Fault) {
	w.Helper()
	if ledger.Fired(f) == 0 {
		w.Fatalf("the fault %q did not fire", f)
	}
}

// extra is how many slices a run has had beyond those that its items were cut into.
func (w *world) extra(run workqueue.RunID) int {
	w.Helper()
	return w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND cause <> 'ready'`, run)
}

// perPoison is how many slices more one poison item may cost in chunks of n: two for each halving, and its attempts.
func perPoison(n, attempts int) int { return 2*bits.Len(uint(n-1)) + attempts }
