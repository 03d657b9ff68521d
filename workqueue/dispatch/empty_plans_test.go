package dispatch

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// What is planned once is planned well, even when there is nothing yet: rows are found by an index and its first
// columns, not by going through all that an index has.
func TestPlansOfEmptyTables(t *testing.T) {
	t.Parallel()
	pool := testenv.Connect(t, testenv.Database(t))
	testenv.Must(pool.Exec(t.Context(), `ANALYZE`))(t)
	plan := func(statement, arguments string) string {
		return strings.Join(testenv.Plan(t, pool, statement, arguments, plane.PlanOnce), "\n")
	}
	const look = `32, '{}', '{}', '{}', '{}', '{}', '{}', 8, 64, NULL, '{}', 256`
	const steps = `'{}', '{}'`
	for name, p := range map[string]string{
		"look": plan(searchRunnable, look), "steps' locks": plan(lockFreeSteps, steps), "paces' locks": plan(lockFreePaces,
			steps),
		"steps": plan(loadSteps, steps), "paces": plan(loadPaces, steps), "rivals": plan(rivals, steps+`, 65`),
		"quotas":     plan(busyQuotas, `'{}'`),
		"due slices": plan(dueSlices, steps+`, '{}'`), "ready blocks": plan(readyBlocks, steps+`, '{}', 100`),
	} {
		if bad := testenv.WholeScans(p); len(bad) > 0 {
			t.Errorf("the plan of the %s goes through everything:\n%s", name, strings.Join(bad, "\n"))
			t.Log(p)
		}
	}
	careless := plan(strings.ReplaceAll(searchRunnable, plane.ReadyThere, `b.has_ready`), look)
	if len(testenv.WholeScans(careless)) == 0 {
		t.Errorf("nothing is found in a plan that is bad:\n%s", careless)
	}
}

// A look for work at endpoints that have all they may have reads no step of what is out there: with ten thousand runs
// that wait it would read thousands, each second.
func TestFullEndpointsCostLittle(t *testing.T) {
	t.Parallel()
	conn := testenv.Must(testenv.Pool(t).Acquire(t.Context()))(t)
	defer conn.Release()
	for _, sql := range fullEndpoints {
		testenv.Must(conn.Exec(t.Context(), sql))(t)
	}
	look := func() (steps int, plan string) {
		for _, sql := range []string{`DEALLOCATE ALL`, `PREPARE look AS ` + searchRunnable} {
			testenv.Must(conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol))(t)
		}
		of, plan := testenv.RowsRead(t, conn, plane.PlanOnce,
			`EXECUTE look(32, '{}', '{}', '{}', '{}', '{}', '{}', 8, 64, NULL, '{}', 256)`)
		testenv.MustSame(t, of["endpoint_pace"], 50, "endpoints that it looks at:\n%s", plan)
		return of["run_step"], plan
	}
	if steps, plan := look(); steps > 0 {
		t.Errorf("it reads %d steps:\n%s", steps, plan)
	}
	testenv.Must(conn.Exec(t.Context(), `UPDATE run_step SET in_flight_auto = false WHERE endpoint = 'e-7'`))(t)
	if steps, plan := look(); steps < 16 {
		t.Errorf("where a step has a limit of its own, it reads %d steps of 16:\n%s", steps, plan)
	}
}

// 50 endpoints with 16 requests out, each of another run, and runs that wait.
var fullEndpoints = []string{
	`SET session_replication_role = replica`,
	`INSERT INTO endpoint_pace (endpoint, in_flight) SELECT 'e-' || e, 16 FROM generate_series(1, 50) e`,
	`INSERT INTO batchrun (id, plan, spec, state, source)
	SELECT gen_random_uuid(), 'p', '{}', 'running', 'e-' || e FROM generate_series(1, 50) e, generate_series(1, 17)`,
	`INSERT INTO run_step (run_id, step, name, kind, endpoint, chunk, in_flight, in_flight_auto, max_attempts,
		request_timeout, retry_backoff)
	SELECT id, 0, 's', 'endpoint', source, 500, 64, true, 3, '1h', '1s' FROM batchrun`,
	`INSERT INTO work_block (run_id, step, block, size, ready, endpoint, turn, auto)
	SELECT id, 0, 0, 1, (B'1' || repeat('0', 8191)::bit(8191))::bit(8192), source, 0, true FROM (
		SELECT *, row_number() OVER (PARTITION BY source) AS n FROM batchrun) r WHERE n = 17`,
	`INSERT INTO work_slice (id, run_id, step, block, generation, mask, remaining, state, attempt, cause, endpoint,
		deadline)
	SELECT gen_random_uuid(), id, 0, 0, 1, B'0'::bit(8192), B'0'::bit(8192), 'sent', 1, 'ready', source,
		tranche_now() + interval '1h' FROM (
		SELECT *, row_number() OVER (PARTITION BY source) AS n FROM batchrun) r WHERE n <= 16`,
	`SET session_replication_role = DEFAULT`,
}
