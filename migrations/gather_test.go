package migrations_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/migrations"
)

// Going back is refused while it would let steps begin without what they need; later it leaves what has ended alone,
// and the way up again is free.
func TestGoingBackFromRunsOfSeveralSteps(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn := testenv.Connect(t, url)
	down := wayBack(t, "00005_gather.sql")
	run := uuid.New()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO batchrun (id, plan, state, spec, params, created_by)
		VALUES ($1, 'p', 'running', '{}', '{}', 'test')`, run)
	for step, kind := range []string{"endpoint", "local"} {
		exec(`INSERT INTO run_step (run_id, step, name, kind, endpoint, chunk, in_flight, max_attempts, retry_backoff,
			slice_timeout) VALUES ($1, $2, $3, $3, $3, 1, 1, 1, '1 s', '1 s')`, run, step, kind)
		exec(`INSERT INTO work_block (run_id, step, block, size, payload_bytes, ready, skipped)
			VALUES ($1, $2, 0, 1, 2, B'0'::bit(8192), B'1'::bit(8192))`, run, step)
	}
	if _, err := conn.Exec(t.Context(), down); err == nil || !strings.Contains(err.Error(), "are under way") {
		t.Fatalf("it went back under a run: %v", err)
	}
	exec(`UPDATE batchrun SET state = 'cancelled' WHERE id = $1`, run)
	later := backTo(t, conn, 4)
	if applied, err := migrations.Up(t.Context(), url, nil); err != nil || len(applied) != later {
		t.Fatalf("applied %v, %v", applied, err)
	}
	exec(`UPDATE run_step SET chunk = 2 WHERE run_id = $1`, run)
}

// backTo takes back every migration after the given one, the newest first, and returns how many these were.
func backTo(t *testing.T, conn *pgxpool.Pool, version int64) (later int) {
	t.Helper()
	files, err := filepath.Glob("*.sql")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	for _, file := range slices.Backward(files) {
		if n, err := strconv.ParseInt(file[:5], 10, 64); err != nil || n <= version {
			break
		}
		if _, err := conn.Exec(t.Context(), wayBack(t, file)); err != nil {
			t.Fatalf("take %s back: %v", file, err)
		}
		later++
	}
	if _, err := conn.Exec(t.Context(), `DELETE FROM tranche_migration WHERE version_id > $1`, version); err != nil {
		t.Fatal(err)
	}
	return later
}

// wayBack returns what takes a migration back.
func wayBack(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, down, found := strings.Cut(string(text), "-- +goose Down")
	if !found {
		t.Fatalf("there is no way back from %s", file)
	}
	return down
}
