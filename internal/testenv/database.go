package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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

// Rewrite runs a statement with the database's guards off, as nobody but a superuser can: it changes rows of the audit
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
