package testenv

import (
	"bytes"
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Standby starts a server that follows the cluster by streaming replication, through a proxy that may be cut, so that
// it falls behind. With synchronous set the cluster confirms no commit from then on that the standby has not written.
func (c *Cluster) Standby(t testing.TB, synchronous bool) (standby *Cluster, replication *Proxy) {
	t.Helper()
	replication = NewProxy(t, c.Target(t))
	host, port, err := net.SplitHostPort(replication.Addr())
	if err != nil {
		fatal(t, err)
	}
	config := c.config
	config.DataDir, config.Settings = tempDir(t), maps.Clone(c.config.Settings)
	config.Settings["primary_conninfo"] = "host=" + host + " port=" + port + " user=tranche application_name=standby"
	standby = &Cluster{config: config}
	c.copyTo(t, standby.directory())
	c.own(t, standby.directory(), "standby.signal")
	standby.start(t)
	c.waitFor(t, "the standby follows", `SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'`)
	if synchronous {
		c.exec(t, `ALTER SYSTEM SET synchronous_standby_names = 'standby'`)
		c.exec(t, `SELECT pg_reload_conf()`)
		c.waitFor(t, "the standby is synchronous", `SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'`)
	}
	return standby, replication
}

// Promote makes a standby a server of its own, on a new timeline.
func (c *Cluster) Promote(t testing.TB) {
	t.Helper()
	c.exec(t, `SELECT pg_promote(true, 60)`)
	c.waitFor(t, "the standby takes writes", `SELECT NOT pg_is_in_recovery()`)
}

// Backup copies the cluster while it runs, and returns what puts the copy in its place. The server must be down then.
func (c *Cluster) Backup(t testing.TB) (restore func()) {
	t.Helper()
	dir := filepath.Join(tempDir(t), "cluster")
	c.copyTo(t, dir)
	return func() {
		t.Helper()
		if err := errors.Join(os.RemoveAll(c.directory()), os.Rename(dir, c.directory())); err != nil {
			fatal(t, err)
		}
	}
}

// Target is where the server listens, as [NewProxy] takes it.
func (c *Cluster) Target(t testing.TB) string {
	t.Helper()
	config, err := pgconn.ParseConfig(c.server.URL())
	if err != nil {
		fatal(t, err)
	}
	if filepath.IsAbs(config.Host) {
		return filepath.Join(config.Host, ".s.PGSQL."+strconv.Itoa(int(config.Port)))
	}
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

func (c *Cluster) directory() string { return filepath.Join(c.config.DataDir, "cluster") }

// start is Start for a cluster of which the URL is not known yet.
func (c *Cluster) start(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		if c.server != nil {
			c.Stop(t)
		}
	})
	c.Start(t)
	c.url = c.server.URL()
}

// copyTo makes a copy of the running cluster, which belongs to the user that it runs as.
func (c *Cluster) copyTo(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil { // to pass through, not to read
		fatal(t, err)
	}
	program := filepath.Join(c.server.BinDir(), "pg_basebackup")
	copying := exec.Command(program, "--dbname="+c.server.URLFor("postgres"), "--pgdata="+dir,
		"--wal-method=stream", "--checkpoint=fast", "--no-sync")
	var said bytes.Buffer
	copying.Stdout, copying.Stderr = &said, &said
	if err := copying.Run(); err != nil {
		t.Fatalf("test environment: pg_basebackup: %v: %s", err, said.String())
	}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, c.give(path))
	})
	if err != nil {
		fatal(t, err)
	}
}

// own makes an empty file in the directory of a cluster.
func (c *Cluster) own(t testing.TB, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := errors.Join(os.WriteFile(path, nil, 0o600), c.give(path)); err != nil {
		fatal(t, err)
	}
}

// give has a file belong to the owner of the cluster.
func (c *Cluster) give(path string) error {
	info, err := os.Stat(c.directory())
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return os.Lchown(path, int(owner.Uid), int(owner.Gid))
}

// exec runs a statement as the superuser.
func (c *Cluster) exec(t testing.TB, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.server.URL())
	if err == nil {
		_, err = conn.Exec(t.Context(), sql)
		err = errors.Join(err, conn.Close(t.Context()))
	}
	if err != nil {
		t.Fatalf("test environment: %s: %v", sql, err)
	}
}

// waitFor waits until a query of the superuser's returns true.
func (c *Cluster) waitFor(t testing.TB, what, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.server.URL())
	if err != nil {
		fatal(t, err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(stopTimeout); ; {
		var met bool
		if err := conn.QueryRow(t.Context(), sql).Scan(&met); err != nil {
			t.Fatalf("test environment: %s: %v", sql, err)
		}
		if met {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("test environment: waited in vain until %s", what)
		}
	}
}
