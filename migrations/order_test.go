package migrations_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// While a run has lines, no node gets a session that knows of none, and the way back is closed.
func TestNodesWithoutLinesStayAwayFromRunsInOrder(t *testing.T) {
	t.Parallel()
	conn := testenv.Connect(t, testenv.Database(t))
	run := uuid.New()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	const session = `INSERT INTO node_session (id, host, pid, version, speaks, expires_at)
		VALUES (gen_random_uuid(), 'h', 1, 'v', $1, tranche_now())`
	exec(`INSERT INTO batchrun (id, plan, state, spec) VALUES ($1, 'p', 'running', '{}')`, run)
	exec(session, 2)
	exec(`INSERT INTO run_order (run_id, rule) VALUES ($1, '{"by":"a"}')`, run)
	if _, err := conn.Exec(t.Context(), session, 2); err == nil || !strings.Contains(err.Error(), "keep items in order") {
		t.Errorf("a node that knows of no lines: %v", err)
	}
	exec(session, 3)
	down := wayBack(t, "00009_order.sql")
	if _, err := conn.Exec(t.Context(), down); err == nil || !strings.Contains(err.Error(), "are under way") {
		t.Errorf("it went back under a run: %v", err)
	}
	exec(`UPDATE batchrun SET state = 'cancelled' WHERE id = $1`, run)
	exec(session, 2)
	if _, err := conn.Exec(t.Context(), down); err != nil {
		t.Error(err)
	}
}
