package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// plane is SQL for a plane with the bits named set.
func plane(bits ...string) string {
	expr := "B'0'::bit(8192)"
	for _, bit := range bits {
		expr = "set_bit(" + expr + ", " + bit + ", 1)"
	}
	return expr
}

const (
	id   = "'00000000-0000-7000-8000-000000000001'"
	run  = `INSERT INTO batchrun (id, plan, spec, state) VALUES (` + id + `, 'p', '{}', 'running')`
	step = `INSERT INTO run_step (run_id, step, name, kind, endpoint, chunk, in_flight, max_attempts, request_timeout,
		retry_backoff) VALUES (` + id + `, 0, 's', 'endpoint', 'e', 500, 64, 3, '30 s', '1 s')`
	batch  = `INSERT INTO tracker_batch (id, owner, state) VALUES (` + id + `, 'o', 'open')`
	insert = `INSERT INTO work_block (run_id, step, block, size, ready, done, failed) VALUES (` + id + `, 0, 0, `
	cut    = `INSERT INTO work_slice (id, run_id, step, block, generation, state, attempt, cause, deadline, mask,
		remaining) VALUES (gen_random_uuid(), ` + id + `, 0, 0, 1, 'claimed', 1, 'ready', `
	part = `INSERT INTO work_result (run_id, slice_id, ordinal, generation, step, result, error_code) VALUES (` +
		id + `, ` + id + `, 0, 1, 0, `
	group  = `INSERT INTO tracker_group VALUES (` + id + `, 0, `
	letter = `INSERT INTO dead_letter (id, msg_id, endpoint, cause, body) VALUES (gen_random_uuid(), 'm', 'e', 'c', `
)

// TestTablesGuardTheirStates runs the last statement of each case and expects it to be refused by the constraint
// named. That what should be taken is taken is shown by the tests of the store.
func TestTablesGuardTheirStates(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	block := insert + "8192, " + plane("0", "1") + ", " + plane("2") + ", " + plane("8191") + ")"
	for name, c := range map[string]struct {
		statements []string
		refusedBy  string
	}{
		"block, ready and done": {[]string{run, step,
			insert + "8192, " + plane("5") + ", " + plane("5") + ", " + plane() + ")"}, "work_block_disjoint"},
		"block, ready and failed": {[]string{run, step,
			insert + "8192, " + plane("5") + ", " + plane() + ", " + plane("5") + ")"}, "work_block_disjoint"},
		"block, done and failed": {[]string{run, step,
			insert + "8192, " + plane() + ", " + plane("8191") + ", " + plane("8191") + ")"}, "work_block_disjoint"},
		"block, ready past size": {[]string{run, step,
			insert + "3, " + plane("3") + ", " + plane() + ", " + plane() + ")"}, "work_block_within_size"},
		"block, done past size": {[]string{run, step,
			insert + "3, " + plane() + ", " + plane("8191") + ", " + plane() + ")"}, "work_block_within_size"},
		"block, failed past size": {[]string{run, step,
			insert + "8191, " + plane() + ", " + plane() + ", " + plane("8191") + ")"}, "work_block_within_size"},
		"block, empty": {[]string{run, step,
			insert + "0, " + plane() + ", " + plane() + ", " + plane() + ")"}, "work_block_size_check"},
		"block without a step": {[]string{run, block}, "work_block_run_id_step_fkey"},
		"slice, remaining outside its mask": {[]string{run, step, block,
			cut + "tranche_now(), " + plane("0") + ", " + plane("1") + ")"}, "work_slice_remaining"},
		"slice, live and empty": {[]string{run, step, block,
			cut + "tranche_now(), " + plane("0") + ", NULL)"}, "work_slice_empty"},
		"slice, claimed indefinitely": {[]string{run, step, block,
			cut + "NULL, " + plane("0") + ", " + plane("0") + ")"}, "work_slice_deadline"},
		"slice, of no block": {[]string{run, step,
			cut + "tranche_now(), " + plane("0") + ", " + plane("0") + ")"}, "work_slice_run_id_step_block_fkey"},
		"part, both":           {[]string{part + "'x', 'E')"}, "work_result_outcome"},
		"part, neither":        {[]string{part + "NULL, NULL)"}, "work_result_outcome"},
		"part, twice":          {[]string{part + "'x', NULL)", part + "NULL, 'E')"}, "work_result_25_pkey"},
		"group, past its size": {[]string{batch, group + "2, " + plane("2") + ")"}, "tracker_group_within_size"},
		"group of no batch":    {[]string{group + "2, " + plane("0") + ")"}, "tracker_group_batch_id_fkey"},
		"batch, completed with open groups": {[]string{batch,
			`UPDATE tracker_batch SET groups = 1, open_groups = 1, state = 'completed'`}, "tracker_batch_check1"},
		"batch, more open than there are": {[]string{batch,
			`UPDATE tracker_batch SET groups = 1, open_groups = 2`}, "tracker_batch_check"},
		"run, completed short of an item": {[]string{run,
			`UPDATE batchrun SET state = 'completed', finished_at = tranche_now(), items = 3, done = 2, failed = 0`},
			"batchrun_check"},
		"run, completed uncounted": {[]string{run,
			`UPDATE batchrun SET state = 'completed', finished_at = tranche_now(), items = 3`}, "batchrun_check"},
		"run, completed at no time": {[]string{run,
			`UPDATE batchrun SET state = 'completed', done = 0, failed = 0`}, "batchrun_check"},
		"run, of no known state": {[]string{run, `UPDATE batchrun SET state = 'stuck'`}, "batchrun_state_check"},
		"step, no deadline": {[]string{run, step, `UPDATE run_step SET request_timeout = '0'`},
			"run_step_request_timeout_check"},
		"step, chunk of none": {[]string{run, step, `UPDATE run_step SET chunk = 0`}, "run_step_chunk_check"},
		"letter, twice":       {[]string{letter + `'b')`, letter + `'b')`}, "dead_letter_msg_id_key"},
		"letter, of no known state": {[]string{letter + `'b')`, `UPDATE dead_letter SET state = 'lost'`},
			"dead_letter_state_check"},
		"letter, too large": {[]string{letter + `convert_to(repeat('x', 16777217), 'utf8'))`},
			"dead_letter_body_check"},
		"letter, requeued without a body": {[]string{letter + `NULL)`, `UPDATE dead_letter SET state = 'requeued'`},
			"dead_letter_whole"},
		"letter, sent while it waits": {[]string{letter + `'b')`, `UPDATE dead_letter SET sent_at = tranche_now()`},
			"dead_letter_sent"},
		"setting, out of range": {[]string{`INSERT INTO endpoint_setting (endpoint, concurrency) VALUES ('e', 1025)`},
			"endpoint_setting_concurrency_check"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := inRollback(t.Context(), pool, c.statements)
			testenv.Same(t, testenv.As[*pgconn.PgError](t, err, "it").ConstraintName, c.refusedBy, "it is refused by")
		})
	}
}

// inRollback runs the statements, of which only the last may fail, and undoes them.
func inRollback(ctx context.Context, db interface {
	Begin(context.Context) (pgx.Tx, error)
}, statements []string) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	for i, sql := range statements {
		if _, err := tx.Exec(ctx, sql); err != nil {
			if i < len(statements)-1 {
				return errors.New("in preparation: " + err.Error())
			}
			return err
		}
	}
	return nil
}

// The clock that a test can move costs nothing where none does: the planner puts what it calls in its place, in
// statements and defaults, for the role that serves, too.
func TestTheClockIsInlined(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	for role, pool := range map[string]*pgxpool.Pool{
		"the owner": testenv.Connect(t, url), "a role that serves": testenv.Connect(t, testenv.Serving(t, url)),
	} {
		for _, statement := range []string{
			`SELECT FROM node_session WHERE expires_at > (SELECT tranche_now())`,
			`INSERT INTO node_session (id, host, pid, version, expires_at)
				VALUES (gen_random_uuid(), 'h', 1, 'v', tranche_now() + interval '1 minute')`,
		} {
			rows := testenv.Must(pool.Query(t.Context(), `EXPLAIN (VERBOSE) `+statement))(t)
			lines := testenv.Must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
			plan := strings.Join(lines, "\n")
			if !strings.Contains(plan, "clock_timestamp()") || strings.Contains(plan, "tranche_now") {
				t.Errorf("%s:\n%s", role, plan)
			}
		}
	}
}

// While a run has lines, no node gets a session that knows of none, and the way back is closed.
func TestNodesWithoutLinesStayAwayFromRunsInOrder(t *testing.T) {
	t.Parallel()
	conn := testenv.Connect(t, testenv.Database(t))
	run := uuid.New()
	exec := func(sql string, args ...any) {
		t.Helper()
		testenv.Must(conn.Exec(t.Context(), sql, args...))(t)
	}
	const session = `INSERT INTO node_session (id, host, pid, version, feature_level, expires_at)
		VALUES (gen_random_uuid(), 'h', 1, 'v', $1, tranche_now())`
	exec(`INSERT INTO batchrun (id, plan, state, spec) VALUES ($1, 'p', 'running', '{}')`, run)
	exec(session, 2)
	exec(`INSERT INTO run_order (run_id, rule) VALUES ($1, '{"by":"a"}')`, run)
	_, err := conn.Exec(t.Context(), session, 2)
	testenv.Says(t, err, "support ordered runs", "a node that knows of no lines")
	exec(session, 3)
	down := wayBack(t, "00009_order.sql")
	_, err = conn.Exec(t.Context(), down)
	testenv.Says(t, err, "are in progress", "it went back under a run")
	exec(`UPDATE batchrun SET state = 'cancelled' WHERE id = $1`, run)
	exec(session, 2)
	testenv.Must(conn.Exec(t.Context(), down))(t)
}
