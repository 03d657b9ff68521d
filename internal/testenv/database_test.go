package testenv_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/migrations"
)

func TestDatabasesAreMigratedAndApart(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	pending, err := migrations.Pending(t.Context(), url)
	if err != nil || len(pending) != 0 {
		t.Fatalf("pending %v, %v; want none", pending, err)
	}
	one, other := testenv.Connect(t, url), testenv.Pool(t)
	if _, err := one.Exec(t.Context(), `INSERT INTO leader VALUES ('x', 1, gen_random_uuid(), now())`); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := other.QueryRow(t.Context(), `SELECT count(*) FROM leader`).Scan(&n); err != nil || n != 0 {
		t.Fatalf("the other database has %d rows (%v), want 0", n, err)
	}
}

func TestClusterKeepsItsDataThroughKillAndRestart(t *testing.T) {
	t.Parallel()
	c := testenv.Postgres(t)
	pool := testenv.Connect(t, c.URL())
	if _, err := pool.Exec(t.Context(), `INSERT INTO leader VALUES ('x', 1, gen_random_uuid(), now())`); err != nil {
		t.Fatal(err)
	}
	c.Kill(t)
	if err := pool.Ping(t.Context()); err == nil {
		t.Fatal("the killed server answered")
	}
	c.Start(t)
	c.Restart(t)
	var n int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM leader`).Scan(&n); err != nil || n != 1 {
		t.Fatalf("after the kill there are %d rows (%v), want 1", n, err)
	}
}
