package testenv

import (
	"context"
	"testing"

	"github.com/tranchehq/tranche/internal/embedded"
)

// Cluster is a durable PostgreSQL for one test, which may stop and kill it. Its URL is the same after a restart. It
// is not safe for concurrent use.
type Cluster struct {
	config embedded.PostgresConfig
	server *embedded.Postgres // nil while it is down
	url    string
}

// Postgres starts a cluster with a migrated database. It takes about a second: use [Pool] where nothing is broken.
func Postgres(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{config: embedded.PostgresConfig{
		DataDir: Dir(t), NoRestart: true, Bound: true,
		Settings: map[string]string{"shared_buffers": "32MB", "max_connections": "100"},
	}}
	NoError(t, newCluster(t.Context(), c.config.DataDir))
	c.stopAtEnd(t)
	c.Start(t)
	c.url = c.server.URL()
	return c
}

func (c *Cluster) stopAtEnd(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		if c.server != nil {
			c.Stop(t)
		}
	})
}

// URL returns the superuser's URL of the migrated database.
func (c *Cluster) URL() string { return c.url }

// Start starts the server after Stop or Kill, and returns once it accepts connections.
func (c *Cluster) Start(t testing.TB) {
	t.Helper()
	server := Must(embedded.StartPostgres(t.Context(), c.config))(t)
	c.server = server
}

func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	server := c.server
	c.server = nil
	NoError(t, server.Stop(ctx))
}

// Kill ends the server like a crash of the machine: it writes nothing, and notifies no client.
func (c *Cluster) Kill(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stopTimeout)
	defer cancel()
	server := c.server
	c.server = nil
	NoError(t, server.Kill(ctx))
}
