package testenv_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Each case leaves something behind. The next test gets the database as it was migrated, or another one.
func TestATestFindsNothingOfAnother(t *testing.T) {
	look := func(t *testing.T) (name, found string, pool *pgxpool.Pool) {
		t.Helper()
		pool = testenv.Pool(t)
		testenv.NoError(t, pool.QueryRow(t.Context(), `SELECT current_database(), concat_ws(' ',
			(SELECT count(*) FROM namespace), (SELECT max(max_in_flight) FROM namespace),
			(SELECT count(*) FROM audit_log), (SELECT count(*) FROM audit_head),
			(SELECT count(*) FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL),
			(SELECT count(*) FROM pg_stats WHERE schemaname = 'public'),
			to_regclass('left_behind'), tranche_now() > $1)`, time.Now().Add(time.Minute)).Scan(&name, &found))
		return name, found, pool
	}
	var clean string
	t.Run("clean", func(t *testing.T) { _, clean, _ = look(t) })
	sql := func(statements string) func(*testing.T, *pgxpool.Pool) {
		return func(t *testing.T, pool *pgxpool.Pool) {
			t.Helper()
			testenv.Must(pool.Exec(t.Context(), statements))(t)
		}
	}
	for name, c := range map[string]struct {
		leave  func(*testing.T, *pgxpool.Pool)
		reused bool
	}{
		"rows": {sql(`DO $$ BEGIN INSERT INTO namespace (name) VALUES ('other'); UPDATE namespace SET max_in_flight = 7;
			INSERT INTO audit_log (actor, action, subject, detail) VALUES ('a', 'b', 'c', '{}');
			CREATE TEMP TABLE mine (); END $$`), true},
		"a clock": {func(t *testing.T, pool *pgxpool.Pool) {
			t.Helper()
			testenv.Advance(t, pool, time.Hour)
		}, true},
		"an open transaction": {func(t *testing.T, pool *pgxpool.Pool) {
			t.Helper()
			conn := testenv.Must(pgx.Connect(t.Context(), pool.Config().ConnString()))(t)
			testenv.Must(conn.Exec(t.Context(), `BEGIN; INSERT INTO namespace (name) VALUES ('other')`))(t)
		}, true},
		"a schema": {sql(`CREATE TABLE left_behind ()`), false},
		"a setting": {sql(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = 64', current_database());
			END $$`), false},
		"many rows": {sql(`INSERT INTO audit_log (actor, action, subject, detail)
			SELECT 'a', 'b', 'c', '{}' FROM generate_series(1, 5000); ANALYZE`), true},
		"many names": {sql(`INSERT INTO schema_object SELECT n || repeat('x', 1000) FROM generate_series(1, 9000) n`), false},
	} {
		t.Run(name, func(t *testing.T) {
			before, after, found := "", "", ""
			t.Run("leave", func(t *testing.T) {
				var pool *pgxpool.Pool
				before, _, pool = look(t)
				c.leave(t, pool)
			})
			t.Run("find", func(t *testing.T) { after, found, _ = look(t) })
			testenv.Same(t, found, clean, "what the next test finds")
			testenv.Same(t, before == after, c.reused, "whether the database is used again")
		})
	}
}
