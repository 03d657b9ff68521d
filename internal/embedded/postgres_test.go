package embedded

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A cluster from its first start over its stop to the next one: whose it is, what is in it, and who is kept out.
func TestPostgresStartsStopsAndKeepsItsData(t *testing.T) {
	t.Parallel()
	config := PostgresConfig{DataDir: dataDir(t)}
	sql := `no SQL`
	config.Prepare = func(ctx context.Context, url string) error {
		return connect(ctx, url, func(c *pgx.Conn) error { _, err := c.Exec(ctx, sql); return err })
	}
	_, err := tryStart(t, config)
	mustSay(t, err, "make cluster with", "syntax error")
	sql = `CREATE TABLE t AS SELECT 'kept' AS v, current_setting('fsync') AS fsync`
	pg := start(t, config)
	if got := query(t, pg.URL(), `SELECT fsync FROM t`); syncsAll && got != "off" {
		t.Errorf("fsync was %q while the cluster was made", got)
	}
	for _, want := range [][2]string{
		{"fsync", "on"}, {"synchronous_commit", "on"}, {"full_page_writes", "on"}, {"jit", "off"},
		{"listen_addresses", ""}, {"shared_buffers", "16MB"}, {"max_wal_size", "4GB"}, {"log_error_verbosity", "terse"},
	} {
		same(t, query(t, pg.URL(), "SHOW "+want[0]), want[1], "%s", want[0])
	}
	checkDatabases(t, pg)
	checkOwners(t, pg, config.DataDir)
	_, err = tryStart(t, config)
	same(t, as[*LockedError](t, err).PID, os.Getpid(), "the process that has the lock")
	mustSay(t, err, config.DataDir, "--data-dir")
	query(t, pg.URL(), `SELECT 'unharmed'`)
	stop(t, pg)
	stop(t, pg) // safe twice

	l := newLayout(config.DataDir)
	err = l.checkAccess(account{name: "mallory", uid: 54321, gid: 54321})
	same(t, as[*AccessError](t, err).At, l.cluster, "the place of the error")
	mustSay(t, err, "mallory", "belongs to")
	checkVersion(t, pg, config)
	pg = start(t, config)
	same(t, query(t, pg.URL(), `SELECT v FROM t`), "kept", "the row after a restart")
}

// checkDatabases makes one twice, and one of an odd name.
func checkDatabases(t *testing.T, pg *Postgres) {
	t.Helper()
	for _, name := range []string{"bank", "bank", `odd "name"/?`} {
		noError(t, pg.CreateDatabase(t.Context(), name))
	}
	same(t, query(t, pg.URLFor(`odd "name"/?`), `SELECT current_database()`), `odd "name"/?`, "connected to")
	// libpq reads URLs with a parser of its own.
	psql := exec.CommandContext(t.Context(), filepath.Join(pg.BinDir(), "psql"), "-X", "-Atc",
		"SELECT current_database()", pg.URLFor("bank"))
	out, err := psql.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "bank" {
		t.Errorf("psql: %v: %s", err, out)
	}
}

// checkOwners wants the cluster to be another user's when the test is root's, and closed to others.
func checkOwners(t *testing.T, pg *Postgres, dir string) {
	t.Helper()
	var cluster, own syscall.Stat_t
	noError(t, errors.Join(syscall.Stat(pg.layout.cluster, &cluster), syscall.Stat(dir, &own)))
	if root := os.Geteuid() == 0; root == (int(cluster.Uid) == os.Geteuid()) || int(own.Uid) != os.Geteuid() {
		t.Errorf("the cluster belongs to %d and the directory to %d; this is %d", cluster.Uid, own.Uid, os.Geteuid())
	}
	for _, private := range []string{pg.layout.run, pg.layout.cluster, pg.layout.password} {
		info, err := os.Stat(private)
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v (%v), want it closed to others", private, info.Mode(), err)
		}
	}
}

// checkVersion has the cluster be of another version for a while.
func checkVersion(t *testing.T, pg *Postgres, config PostgresConfig) {
	t.Helper()
	file := filepath.Join(pg.layout.cluster, "PG_VERSION")
	was, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte("9\n"), 0o600)
	}
	noError(t, err)
	_, err = tryStart(t, config)
	same(t, as[*VersionError](t, err).Data, 9, "the version of the data")
	mustSay(t, err, pg.layout.cluster, "PostgreSQL 9", pg.BinDir(), "pg_upgrade", "--data-dir")
	noError(t, os.WriteFile(file, was, 0o600))
}

func TestPostgresRefusesADirectoryThatItsUserCannotEnter(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("only root runs the server as another user")
		return
	}
	closed := filepath.Join(dataDir(t), "closed")
	noError(t, os.Mkdir(closed, 0o700))
	_, err := tryStart(t, PostgresConfig{DataDir: filepath.Join(closed, "pg")})
	access := as[*AccessError](t, err)
	same(t, access.At, closed, "the place of the error")
	mustSay(t, err, closed, access.User, "chmod o+x", "--data-dir")
}

func TestPostgresFallsBackToTCPOnALongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(dataDir(t), strings.Repeat("long", 25))
	pg := start(t, PostgresConfig{DataDir: dir})
	if pg.address.socketDir != "" || !strings.Contains(pg.URL(), "127.0.0.1") {
		t.Fatalf("listens at %+v, want TCP", pg.address)
	}
	query(t, pg.URL(), `SELECT 'password accepted'`)
	wrong := pg.address
	wrong.password = "wrong"
	err := connect(t.Context(), wrong.url("postgres"), func(*pgx.Conn) error { return nil })
	if err == nil || !refused(err) {
		t.Fatalf("a wrong password got %v", err)
	}
	same(t, query(t, pg.URL(), `SHOW listen_addresses`), "127.0.0.1", "listens on")
}

func TestPostgresTakesAnotherPortWhenItsOwnIsGone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(dataDir(t), strings.Repeat("long", 25))
	pg := start(t, PostgresConfig{DataDir: dir, NoRestart: true})
	noError(t, pg.proc.stop(t.Context()))
	<-pg.watched
	taken := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	pg.address.port = port
	noError(t, pg.launch(t.Context()))
	if pg.address.port == port {
		t.Fatal("the port is still the one that was taken")
	}
	query(t, pg.URL(), `SELECT 'up'`)
}

func TestPostgresStartsAgainAfterItDied(t *testing.T) {
	t.Parallel()
	log, logs := observed()
	pg := start(t, PostgresConfig{DataDir: dataDir(t), Log: log})
	run(t, pg.URL(), `CREATE TABLE t AS SELECT 'kept' AS v`)
	first := pg.PID()
	noError(t, syscall.Kill(first, syscall.SIGKILL))
	eventually(t, limit, "another server", func() bool { return pg.PID() != first })
	same(t, query(t, pg.URL(), `SELECT v FROM t`), "kept", "the row after the crash")
	same(t, logs.FilterMessage("PostgreSQL ended unexpectedly").Len(), 1, "how often the crash was logged")
}

func TestPostgresStopIsImmediateWhenItsTimeIsUp(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	config := PostgresConfig{DataDir: dir, Settings: small()}
	pg := must(StartPostgres(t.Context(), config))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pg.Stop(ctx); err == nil {
		t.Log("the server was faster than its deadline") // allowed: a fast shutdown may win
	}
	if servesCluster(t.Context(), pg.PID(), pg.layout.cluster) {
		t.Fatal("the server still runs")
	}
	stop(t, must(StartPostgres(t.Context(), config))(t))
}

func TestPostgresStartErrorCarriesTheLog(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	_, err := tryStart(t, PostgresConfig{DataDir: dir, Settings: map[string]string{"shared_buffers": "plenty"}})
	_ = as[*ServerError](t, err)
	mustSay(t, err, "shared_buffers", "plenty", "postgres.log")
	// A bad setting of one start does not spoil the next, and the lock was given back.
	query(t, start(t, PostgresConfig{DataDir: dir}).URL(), `SELECT 'up'`)
}

func TestFindInstallsNewestFirst(t *testing.T) {
	t.Parallel()
	found, err := FindInstalls(t.Context())
	if err != nil {
		t.Fatalf("%v\nor let the makefile install it: make deps", err)
	}
	for i, in := range found {
		if in.Major < minMajor || in.Version == "" || !filepath.IsAbs(in.Dir) {
			t.Errorf("installation %+v", in)
		}
		if i > 0 && in.Major > found[i-1].Major {
			t.Errorf("%d stands behind %d", in.Major, found[i-1].Major)
		}
	}
}

func TestInspectTakesWorkingProgramsOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		initdb, postgres string
		major            int
	}{
		"release":        {"exit 0", "echo 'postgres (PostgreSQL) 17.2'", 17},
		"beta":           {"exit 0", "echo 'postgres (PostgreSQL) 18beta1'", 18},
		"distribution":   {"exit 0", "echo 'postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)'", 15},
		"no initdb":      {"", "echo 'postgres (PostgreSQL) 17.2'", 0},
		"broken initdb":  {"exit 127", "echo 'postgres (PostgreSQL) 17.2'", 0},
		"something else": {"exit 0", "echo 'EnterpriseDB 9'", 0},
	} {
		dir := t.TempDir()
		for program, script := range map[string]string{"initdb": c.initdb, "postgres": c.postgres} {
			if script == "" {
				continue
			}
			syscall.ForkLock.RLock() // what is started meanwhile would have it open for a moment: then it cannot be run
			err := os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"+script+"\n"), 0o755)
			syscall.ForkLock.RUnlock()
			noError(t, err)
		}
		in, ok := inspect(t.Context(), dir)
		if ok != (c.major != 0) || (ok && in.Major != c.major) {
			t.Errorf("%s: got %+v, %v", name, in, ok)
		}
	}
}

func TestInstallForTakesTheMatchingVersion(t *testing.T) {
	t.Parallel()
	installs := []Install{{Dir: "/new", Major: 17}, {Dir: "/old", Major: 15}}
	if in, err := installFor(15, "dir", installs); err != nil || in.Dir != "/old" {
		t.Fatalf("got %+v, %v; want the old one", in, err)
	}
	_, err := installFor(16, "dir", installs)
	mustSay(t, err, "PostgreSQL 16", "17 (/new)", "15 (/old)")
}
