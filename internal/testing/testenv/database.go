package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/embedded"
)

const (
	// poolSize keeps many tests at once below the cluster's connections.
	poolSize = 16
	// emptyTemplate is PostgreSQL's own.
	emptyTemplate = "template0"
)

// Database returns the superuser's URL of a database of the test's own, migrated, and dropped when the test ends.
func Database(t testing.TB) string {
	t.Helper()
	return database(t, func(s *sharedServer) string { return s.template })
}

// EmptyDatabase is Database without the schema.
func EmptyDatabase(t testing.TB) string {
	t.Helper()
	return database(t, func(*sharedServer) string { return emptyTemplate })
}

// OddDatabase returns the URL of an empty database in LATIN1 whose sessions write values in unusual ways.
func OddDatabase(t testing.TB) string {
	t.Helper()
	home := EmptyDatabase(t)
	admin := Connect(t, home)
	name := "odd_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	run := func(ctx context.Context, statements ...string) {
		for _, s := range statements {
			if _, err := admin.Exec(ctx, fmt.Sprintf(s, name)); err != nil {
				fatal(t, err)
			}
		}
	}
	run(t.Context(), "CREATE DATABASE %s TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'",
		"ALTER DATABASE %s SET client_encoding = 'LATIN1'", "ALTER DATABASE %s SET extra_float_digits = -2",
		"ALTER DATABASE %s SET intervalstyle = 'sql_standard'", "ALTER DATABASE %s SET datestyle = 'German'",
		"ALTER DATABASE %s SET timezone = 'Asia/Tokyo'", "ALTER DATABASE %s SET bytea_output = 'escape'")
	t.Cleanup(func() { run(context.Background(), "DROP DATABASE %s WITH (FORCE)") })
	odd, err := url.Parse(home)
	if err != nil {
		fatal(t, err)
	}
	odd.Path = "/" + name
	return odd.String()
}

func database(t testing.TB, template func(*sharedServer) string) string {
	t.Helper()
	name, url, err := shared.clone(t.Context(), template)
	if err != nil {
		fatal(t, err)
	}
	t.Cleanup(func() {
		if err := shared.drop(context.Background(), name); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	return url
}

// Pool returns a pool on a database as [Database] makes it, closed when the test ends.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Connect(t, Database(t))
}

// Connect returns a pool on the database at url, closed when the test ends.
func Connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("connect to the test's database: %v", err)
	}
	config.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("connect to the test's database: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// fatal ends the test and names the remedy.
func fatal(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, embedded.ErrNoBinaries) {
		t.Fatalf("%v\nor let the makefile install it: make deps\nor use a server that runs: %s=URL", err, databaseVariable)
	}
	t.Fatalf("test environment: %v", err)
}

// Rewrite runs a statement with the database's guards off, as no one but a superuser can: it changes rows of the audit
// log, say, which stay as they were written.
func Rewrite(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL session_replication_role = replica`); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), sql, args...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

const (
	// clockIs makes tranche_now movable. Sequences are read as they are now, as a clock is, also in a transaction that
	// sees what was before; and calls of functions leave plans as they are, which a query for the offset would not.
	clockIs = `
DO $$ BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('testenv.clock'));
    IF to_regclass('testenv.ahead') IS NULL THEN
        CREATE SCHEMA testenv;
        CREATE SEQUENCE testenv.ahead MINVALUE -9000000000000000000;
        CREATE SEQUENCE testenv.stopped MINVALUE -9000000000000000000;
        PERFORM setval('testenv.ahead', 0);
        GRANT SELECT ON ALL SEQUENCES IN SCHEMA testenv TO PUBLIC;
        CREATE OR REPLACE FUNCTION tranche_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
        RETURN coalesce(
            timestamptz 'epoch' + pg_sequence_last_value('testenv.stopped') * interval '1 microsecond',
            clock_timestamp() + pg_sequence_last_value('testenv.ahead') * interval '1 microsecond');
    END IF;
END $$`

	advanceClock = `
SELECT setval('testenv.ahead', last_value + $1::bigint), CASE WHEN pg_sequence_last_value('testenv.stopped') IS NOT NULL
    THEN setval('testenv.stopped', pg_sequence_last_value('testenv.stopped') + $1::bigint) END
FROM testenv.ahead`
	setClock = `
SELECT setval('testenv.ahead', (1000000 * extract(epoch FROM $1::timestamptz - clock_timestamp()))::bigint),
    setval('testenv.stopped', 1, false)`
	stopClock = `SELECT setval('testenv.stopped', (1000000 * extract(epoch FROM $1::timestamptz))::bigint)`
)

// Advance moves the clock of a database: what its statements take for the time of day is later by that from now on. A
// superuser's pool is needed; that of [Pool] is one. The first move of all may pass by a transaction that is open. The
// times that Go takes are as they were.
func Advance(t testing.TB, pool *pgxpool.Pool, by time.Duration) {
	t.Helper()
	moveClock(t, pool, advanceClock, by.Microseconds())
}

// SetClock sets the clock of a database to a time, from which it goes on.
func SetClock(t testing.TB, pool *pgxpool.Pool, at time.Time) {
	t.Helper()
	moveClock(t, pool, setClock, at)
}

// StopClock stops the clock of a database at a time until it is set again; to advance it moves that time.
func StopClock(t testing.TB, pool *pgxpool.Pool, at time.Time) {
	t.Helper()
	moveClock(t, pool, stopClock, at)
}

// undefined are the codes of a schema and of a table that are not there.
func undefined() []string { return []string{"3F000", "42P01"} }

func moveClock(t testing.TB, pool *pgxpool.Pool, move string, to any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), move, to)
	if said, is := errors.AsType[*pgconn.PgError](err); is && slices.Contains(undefined(), said.Code) { // its first move
		if _, err = pool.Exec(t.Context(), clockIs); err == nil {
			_, err = pool.Exec(t.Context(), move, to)
		}
	}
	if err != nil {
		t.Fatalf("move the clock of the test's database: %v", err)
	}
}
