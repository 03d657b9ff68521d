package testenv

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/migrations"
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

// keptFor limits the age of a kept cluster, since its name does not cover the code that made it.
const keptFor = time.Hour

// newCluster creates a stopped cluster with the migrated databases [embedded.DefaultDatabase] and leaseTemplate, and
// the role that serves in their clones, in dir. It copies one with the same migrations and PostgreSQL from the user's
// cache, if any, which saves a second or more.
func newCluster(ctx context.Context, dir string) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return makeCluster(ctx, dir)
	}
	cache = filepath.Join(cache, "tranche-test")
	name, err := clusterName(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	if err := sweepKept(cache); err != nil {
		return err
	}
	kept := filepath.Join(cache, name)
	if _, err := os.Stat(kept); err == nil {
		return copyCluster(ctx, kept, dir)
	}
	if err := makeCluster(ctx, dir); err != nil {
		return err
	}
	draft := kept + ".new"
	return errors.Join(os.MkdirAll(draft, 0o700), copyCluster(ctx, dir, draft), os.Rename(draft, kept))
}

// sweepKept removes expired clusters, and drafts that a killed binary left. The caller holds the lock.
func sweepKept(cache string) error {
	kept, err := os.ReadDir(cache)
	for _, entry := range kept {
		info, gone := entry.Info()
		if gone == nil && entry.IsDir() &&
			(filepath.Ext(entry.Name()) == ".new" || time.Since(info.ModTime()) > keptFor) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(cache, entry.Name())))
		}
	}
	return err
}

// clusterName depends on the migrations and the installation of PostgreSQL.
func clusterName(ctx context.Context) (string, error) {
	installs, err := embedded.FindInstalls(ctx)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	_, _ = fmt.Fprintln(sum, installs[0].Dir, installs[0].Version, servingRole, idle, beginLeases)
	err = fs.WalkDir(migrations.Files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := migrations.Files.ReadFile(path)
		_, _ = fmt.Fprintln(sum, path, len(text))
		sum.Write(text)
		return err
	})
	return fmt.Sprintf("%x", sum.Sum(nil)[:8]), err
}

func makeCluster(ctx context.Context, dir string) error {
	server, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{
		DataDir: dir, Settings: reckless, NoRestart: true, Bound: true,
	})
	if err != nil {
		return err
	}
	if _, err = migrations.Up(ctx, server.URL(), nil); err == nil { // PostgreSQL 14 also lets every role create tables
		err = errors.Join(execute(ctx, server.URL(), `REVOKE CREATE ON SCHEMA public FROM PUBLIC;
			CREATE ROLE `+servingRole+` LOGIN PASSWORD '`+servingRole+`'`), migrations.Grant(ctx, server.URL(), servingRole))
	}
	for _, step := range [][2]string{
		{"postgres", idle},
		{"postgres", "CREATE DATABASE " + leaseTemplate + " TEMPLATE " + embedded.DefaultDatabase},
		{leaseTemplate, beginLeases},
	} {
		if err == nil {
			err = execute(ctx, server.URLFor(step[0]), step[1])
		}
	}
	return errors.Join(err, server.Stop(ctx))
}

// copyCluster does not change the directory's age, which [sweep] uses.
func copyCluster(ctx context.Context, from, to string) error {
	out, err := exec.CommandContext(ctx, "cp", "-a", filepath.Join(from, "cluster"), filepath.Join(from, "password"), to).
		CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy the cluster in %s: %w: %s", from, err, out)
	}
	return nil
}
