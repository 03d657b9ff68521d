package testenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
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
	// poolSize keeps many concurrent tests below the cluster's connection limit.
	poolSize      = 16
	emptyTemplate = "template0"
)

// Database returns the superuser's URL of a migrated database for the test, dropped when it ends.
func Database(t testing.TB) string {
	t.Helper()
	return database(t, embedded.DefaultDatabase)
}

// EmptyDatabase is Database without the schema.
func EmptyDatabase(t testing.TB) string {
	t.Helper()
	return database(t, emptyTemplate)
}

// OddDatabase returns the URL of an empty LATIN1 database whose sessions use unusual output formats.
func OddDatabase(t testing.TB) string {
	t.Helper()
	home := EmptyDatabase(t)
	admin := Connect(t, home)
	name := "odd_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	run := func(ctx context.Context, statements ...string) {
		for _, s := range statements {
			Must(admin.Exec(ctx, fmt.Sprintf(s, name)))(t)
		}
	}
	run(t.Context(), "CREATE DATABASE %s TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'",
		"ALTER DATABASE %s SET client_encoding = 'LATIN1'", "ALTER DATABASE %s SET extra_float_digits = -2",
		"ALTER DATABASE %s SET intervalstyle = 'sql_standard'", "ALTER DATABASE %s SET datestyle = 'German'",
		"ALTER DATABASE %s SET timezone = 'Asia/Tokyo'", "ALTER DATABASE %s SET bytea_output = 'escape'")
	t.Cleanup(func() { run(context.Background(), "DROP DATABASE %s WITH (FORCE)") })
	odd := Must(url.Parse(home))(t)
	odd.Path = "/" + name
	return odd.String()
}

func database(t testing.TB, template string) string {
	t.Helper()
	name, url, err := shared.clone(t.Context(), template)
	NoError(t, err)
	t.Cleanup(func() {
		Same(t, shared.drop(context.Background(), name), nil, "drop the test's database")
	})
	return url
}

// Connect returns a pool on the database at url, closed when the test ends.
func Connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool := Must(connect(url, nil))(t)
	t.Cleanup(pool.Close)
	return pool
}

func connect(url string, settings map[string]string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = poolSize
	maps.Copy(config.ConnConfig.RuntimeParams, settings)
	return pgxpool.NewWithConfig(context.Background(), config)
}

// Rewrite runs a statement without the database's guards, as only a superuser can.
func Rewrite(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL session_replication_role = replica`); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), sql, args...)
		return err
	})
	NoError(t, err)
}

const (
	// clockIs makes tranche_now movable. Like a clock, sequences ignore snapshots. Calls of functions do not change
	// plans, as a query for the offset would.
	clockIs = `
DO $$ BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('testenv.clock'));
    IF to_regclass('testenv.ahead') IS NULL THEN
        PERFORM set_config('session_replication_role', 'replica', true); -- this is no change of the schema
        CREATE SCHEMA IF NOT EXISTS testenv;
        GRANT USAGE ON SCHEMA testenv TO PUBLIC;
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

// Advance moves a database's clock forward: later statements see that much later times. The pool must be a
// superuser's, like that of [Pool]. An open transaction may miss the first move. Go's clock does not change.
func Advance(t testing.TB, pool *pgxpool.Pool, by time.Duration) {
	t.Helper()
	moveClock(t, pool, advanceClock, by.Microseconds())
}

// SetClock sets the clock of a database, which then continues from there.
func SetClock(t testing.TB, pool *pgxpool.Pool, at time.Time) {
	t.Helper()
	moveClock(t, pool, setClock, at)
}

// StopClock stops the clock of a database until SetClock. Advance moves the stopped time.
func StopClock(t testing.TB, pool *pgxpool.Pool, at time.Time) {
	t.Helper()
	moveClock(t, pool, stopClock, at)
}

func moveClock(t testing.TB, pool *pgxpool.Pool, move string, to any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), move, to)
	said, is := errors.AsType[*pgconn.PgError](err)
	if is && (said.Code == "3F000" || said.Code == "42P01") { // the first move: no such schema, or no such table
		if _, err = pool.Exec(t.Context(), clockIs); err == nil {
			_, err = pool.Exec(t.Context(), move, to)
		}
	}
	NoError(t, err)
}

// Serving returns the URL of a [Database] for a role with only the rights of `tranche migrate --grant`.
func Serving(t testing.TB, database string) string {
	t.Helper()
	return Must(as(database, servingRole))(t)
}

// Role creates a login role with attributes, like "CREATEROLE", and returns its name and URL. The database must be
// from [Database] or [EmptyDatabase]. When the test ends, the role and what it owns are dropped.
func Role(t testing.TB, database, attributes string) (name, at string) {
	t.Helper()
	name = "tranche_role_" + suffix()
	admin := Must(pgx.Connect(t.Context(), database))(t)
	t.Cleanup(func() {
		ctx := context.Background()
		_, dropped := admin.Exec(ctx, "DROP OWNED BY "+name+" CASCADE")
		_, gone := admin.Exec(ctx, "DROP ROLE "+name)
		Same(t, errors.Join(dropped, gone, admin.Close(ctx)), nil, "drop role %s", name)
	})
	Must(admin.Exec(t.Context(), "CREATE ROLE "+name+" LOGIN PASSWORD '"+name+"' "+attributes))(t)
	return name, Must(as(database, name))(t)
}

// as returns the URL for another role, whose password is its name.
func as(database, role string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", err
	}
	u.User = url.UserPassword(role, role)
	return u.String(), nil
}

// servingRole has only the rights of `tranche migrate --grant`.
const servingRole = "tranche_serving"

func execute(ctx context.Context, database, sql string) error {
	admin, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	_, err = admin.Exec(ctx, sql)
	return errors.Join(err, admin.Close(ctx))
}
