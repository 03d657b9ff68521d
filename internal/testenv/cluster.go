package testenv

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/migrations"
)

// Cluster is a PostgreSQL of one test's own, which may be stopped and killed. Its commits are as durable as those of a
// real one, and its URL stays the same over restarts. It is not safe for concurrent use.
type Cluster struct {
	config embedded.PostgresConfig
	server *embedded.Postgres // nil while it is down
	url    string
}

// Postgres starts a cluster with a migrated database. It takes about a second, so use [Pool] where nothing is broken.
func Postgres(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{config: embedded.PostgresConfig{
		DataDir: tempDir(t), NoRestart: true, Bound: true,
		Settings: map[string]string{"shared_buffers": "32MB", "max_connections": "100"},
	}}
	t.Cleanup(func() {
		if c.server != nil {
			c.Stop(t)
		}
	})
	c.Start(t)
	c.url = c.server.URL()
	if _, err := migrations.Up(t.Context(), c.url, nil); err != nil {
		t.Fatalf("test environment: %v", err)
	}
	return c
}

// URL returns the superuser's URL of the migrated database.
func (c *Cluster) URL() string { return c.url }

// Start starts the server after Stop or Kill, and returns when it takes connections.
func (c *Cluster) Start(t testing.TB) {
	t.Helper()
	server, err := embedded.StartPostgres(t.Context(), c.config)
	if err != nil {
		fatal(t, err)
	}
	c.server = server
}

// Stop shuts the server down, cutting off its clients.
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	server := c.server
	c.server = nil
	if err := server.Stop(ctx); err != nil {
		t.Fatalf("test environment: %v", err)
	}
}

// Kill ends the server as a crash of the machine does: nothing is written, no client is told.
func (c *Cluster) Kill(t testing.TB) {
	t.Helper()
	pids := append([]int{c.server.PID()}, c.processes(t)...)
	for _, pid := range pids {
		// The server first, lest it sees its children die and restarts them. They may be gone by their turn.
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatalf("kill the test's PostgreSQL: %v", err)
		}
	}
	c.Stop(t) // collects it
}

// processes returns the ids of the server's children. Without their parent they would serve their clients to the end of
// the statement.
func (c *Cluster) processes(t testing.TB) []int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.server.URL())
	if err != nil {
		t.Fatalf("kill the test's PostgreSQL: %v", err)
	}
	defer func() { _ = conn.Close(t.Context()) }() // it is about to be killed
	rows, err := conn.Query(t.Context(), `SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()`)
	if err != nil {
		t.Fatalf("kill the test's PostgreSQL: %v", err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatalf("kill the test's PostgreSQL: %v", err)
	}
	return pids
}

// Restart is Stop and Start.
func (c *Cluster) Restart(t testing.TB) {
	t.Helper()
	c.Stop(t)
	c.Start(t)
}
