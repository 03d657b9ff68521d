package faultyservice

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	name = "statement"
	// limit is for anything to happen. It tells what hangs from what is slow on a busy machine; the bench says how long
	// things take.
	limit = nodetest.Stuck
)

// world is a node, a server and a database for one test.
type world struct {
	*testing.T
	*nodetest.Bundle
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{t, nodetest.ServersOnly(t)}
	w.Node = w.StartNodeWith(t, orchestrator.Config{Poll: 100 * time.Millisecond})
	return w
}

func (w *world) serve(cfg Config) *Ledger {
	w.Helper()
	if cfg.Endpoint == "" {
		cfg.Endpoint = name
	}
	svc := testenv.Must(New(testenv.Conn(w, w.NS), cfg))(w)
	nodetest.Run(w.T, "service", svc.Run)
	return svc.Ledger()
}

// plan is the settings of the runs here: small pauses, so that tests are quick, and no deadline.
func plan(change ...func(*start.LoadRequest)) start.LoadRequest {
	req := nodetest.Request(name)
	req.Steps[0].Timeout = 2 * limit
	for _, f := range change {
		f(&req)
	}
	return req
}

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
	return &world{t, w.Bundle}
}

// automatic leaves the pace to the nodes.
func automatic(req *start.LoadRequest) {
	req.Steps[0].InFlight, req.Steps[0].InFlightAuto = 1024, true
}

// start makes a run of n items, each with its key as payload.
func (w *world) start(n int, req start.LoadRequest) workqueue.RunID {
	w.Helper()
	return w.Start(w.T, req, n)
}

func (w *world) number(sql string, args ...any) int {
	w.Helper()
	return w.Number(w.T, sql, args...)
}

func (w *world) text(sql string, args ...any) (s string) {
	w.Helper()
	testenv.NoError(w, w.Pool.QueryRow(context.Background(), sql, args...).Scan(&s))
	return s
}

func (w *world) until(what string, met func() bool) { w.Helper(); nodetest.Until(w.T, what, met) }

// completed waits until a run has completed its first generation, and returns its counts.
func (w *world) completed(run workqueue.RunID) (done, failed int) {
	w.Helper()
	d, f := w.Outcome(w.T, run, 1)
	return int(d), int(f)
}

// wantSound waits for a run's end and compares it with what is known from outside: its counts, its results, the ledger.
// No item was executed for a slice that did not hold it.
func (w *world) wantSound(run workqueue.RunID, ledger *Ledger, done, failed int) {
	w.Helper()
	if d, f := w.completed(run); d != done || f != failed {
		w.Errorf("%d done and %d failed; want %d and %d", d, f, done, failed)
	}
	right := w.number(`SELECT count(*) FROM work_result p JOIN work_queue q USING (run_id, ordinal)
		WHERE run_id = $1 AND convert_from(p.result, 'utf8')::json->>'id' = q.item_key`, run)
	testenv.Same(w, right, done, "results are right")
	testenv.Same(w, w.number(`SELECT count(*) FROM run_event WHERE run_id = $1 AND kind = 'completed'`, run), 1,
		"events of its completion")
	testenv.Same(w, len(ledger.Times(uuid.UUID(run), 1)), done+failed, "items were executed")
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
	testenv.Same(w, stray, 0, "executions were of items that no such slice held")
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
