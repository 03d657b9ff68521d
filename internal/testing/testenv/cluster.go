package testenv

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

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

// Standby starts a standby by streaming replication through a proxy, which may be cut so that it falls behind. With
// synchronous, the cluster then confirms only commits that the standby has written.
func (c *Cluster) Standby(t testing.TB, synchronous bool) (standby *Cluster, replication *Proxy) {
	t.Helper()
	replication = NewProxy(t, c.Target(t))
	conninfo := Must(embedded.ConninfoThrough(replication.Addr()))(t)
	config := c.config
	config.DataDir, config.Settings = Dir(t), maps.Clone(c.config.Settings)
	standby = &Cluster{config: config}
	standby.stopAtEnd(t)
	ctx, cancel := context.WithTimeout(t.Context(), stopTimeout)
	defer cancel()
	standby.server = Must(c.server.StartStandby(ctx, config, conninfo))(t)
	standby.config.Settings["primary_conninfo"] = conninfo // for later starts
	standby.url = standby.server.URL()
	if synchronous {
		NoError(t, c.server.Synchronous(ctx))
	}
	return standby, replication
}

// Promote makes a standby an independent server, on a new timeline.
func (c *Cluster) Promote(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stopTimeout)
	defer cancel()
	NoError(t, c.server.Promote(ctx))
}

// Backup copies the running cluster. restore replaces the cluster by the copy, while the server is down.
func (c *Cluster) Backup(t testing.TB) (restore func()) {
	t.Helper()
	dir := filepath.Join(Dir(t), "copy", "cluster")
	NoError(t, c.server.Backup(t.Context(), dir))
	return func() {
		t.Helper()
		NoError(t, errors.Join(os.RemoveAll(c.directory()), os.Rename(dir, c.directory())))
	}
}

// Target returns the server's address for [NewProxy].
func (c *Cluster) Target(t testing.TB) string {
	t.Helper()
	config := Must(pgconn.ParseConfig(c.server.URL()))(t)
	if filepath.IsAbs(config.Host) {
		return filepath.Join(config.Host, ".s.PGSQL."+strconv.Itoa(int(config.Port)))
	}
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

func (c *Cluster) directory() string { return filepath.Join(c.config.DataDir, "cluster") }

// DumpTo dumps the database, restores it as a new one on another cluster, and returns its URL.
func (c *Cluster) DumpTo(t testing.TB, other *Cluster, database string) (url string) {
	t.Helper()
	NoError(t, other.server.CreateDatabase(t.Context(), database))
	url = other.server.URLFor(database)
	file := filepath.Join(t.TempDir(), "dump")
	for _, args := range [][]string{
		{"pg_dump", "--format=custom", "--file=" + file, c.server.URL()}, {"pg_restore", "--dbname=" + url, file},
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(c.server.BinDir(), args[0]), args[1:]...)
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("test environment: %s: %v: %s", args[0], err, said)
		}
	}
	return url
}
