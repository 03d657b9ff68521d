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

func TestPostgresStartsStopsAndKeepsItsData(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	pg := start(t, PostgresConfig{DataDir: dir})
	run(t, pg.URL(), `CREATE TABLE t AS SELECT 'kept' AS v`)
	for _, want := range [][2]string{
		{"fsync", "on"}, {"synchronous_commit", "on"}, {"full_page_writes", "on"}, {"jit", "off"},
		{"listen_addresses", ""}, {"shared_buffers", "16MB"}, {"max_wal_size", "4GB"}, {"log_error_verbosity", "terse"},
	} {
		if got := query(t, pg.URL(), "SHOW "+want[0]); got != want[1] {
			t.Errorf("%s is %q, want %q", want[0], got, want[1])
		}
	}
	stop(t, pg)
	stop(t, pg) // safe twice

	pg = start(t, PostgresConfig{DataDir: dir})
	if got := query(t, pg.URL(), `SELECT v FROM t`); got != "kept" {
		t.Fatalf("after a restart the row is %q", got)
	}
}

func TestPostgresCreateDatabaseIsIdempotent(t *testing.T) {
	t.Parallel()
	pg := start(t, PostgresConfig{DataDir: dataDir(t), Database: `odd "name"/?`})
	for range 2 {
		if err := pg.CreateDatabase(t.Context(), "bank"); err != nil {
			t.Fatal(err)
		}
	}
	if got := query(t, pg.URL(), `SELECT current_database()`); got != `odd "name"/?` {
		t.Errorf("connected to %q", got)
	}
	// libpq reads URLs with a parser of its own.
	psql := exec.CommandContext(t.Context(), filepath.Join(pg.BinDir(), "psql"), "-X", "-Atc",
		"SELECT current_database()", pg.URLFor("bank"))
	out, err := psql.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "bank" {
		t.Errorf("psql: %v: %s", err, out)
	}
}

func TestPostgresRunsAsAnotherUserUnderRoot(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	pg := start(t, PostgresConfig{DataDir: dir})
	var st syscall.Stat_t
	if err := syscall.Stat(pg.layout.cluster, &st); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		if int(st.Uid) != os.Geteuid() {
			t.Fatalf("the cluster belongs to %d, want %d", st.Uid, os.Geteuid())
		}
		return
	}
	if st.Uid == 0 {
		t.Fatal("the cluster belongs to root")
	}
	var own syscall.Stat_t
	if err := syscall.Stat(dir, &own); err != nil || own.Uid != 0 {
		t.Errorf("the directory was given to %d (%v), want root", own.Uid, err)
	}
	for _, private := range []string{pg.layout.run, pg.layout.cluster, pg.layout.password} {
		info, err := os.Stat(private)
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v (%v), want it closed to others", private, info.Mode(), err)
		}
	}
}

func TestPostgresRefusesADirectoryThatItsUserCannotEnter(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("only root runs the server as another user")
		return
	}
	closed := filepath.Join(dataDir(t), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := tryStart(t, PostgresConfig{DataDir: filepath.Join(closed, "pg")})
	var access *AccessError
	if !errors.As(err, &access) || access.At != closed {
		t.Fatalf("got %v, want an AccessError at %s", err, closed)
	}
	mustSay(t, err, closed, access.User, "chmod o+x", "--data-dir")
}

func TestPostgresRefusesAForeignCluster(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	stop(t, start(t, PostgresConfig{DataDir: dir}))
	l := newLayout(dir)
	err := l.checkAccess(account{name: "mallory", uid: 54321, gid: 54321})
	var access *AccessError
	if !errors.As(err, &access) || access.At != l.cluster {
		t.Fatalf("got %v, want an AccessError at %s", err, l.cluster)
	}
	mustSay(t, err, "mallory", "belongs to")
}

func TestPostgresLocksItsDirectory(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	pg := start(t, PostgresConfig{DataDir: dir})
	_, err := tryStart(t, PostgresConfig{DataDir: dir})
	var locked *LockedError
	if !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Fatalf("got %v, want a LockedError of process %d", err, os.Getpid())
	}
	mustSay(t, err, dir, "--data-dir")
	query(t, pg.URL(), `SELECT 'unharmed'`)
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
	if got := query(t, pg.URL(), `SHOW listen_addresses`); got != "127.0.0.1" {
		t.Errorf("listens on %q", got)
	}
}

func TestPostgresTakesAnotherPortWhenItsOwnIsGone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(dataDir(t), strings.Repeat("long", 25))
	pg := start(t, PostgresConfig{DataDir: dir, NoRestart: true})
	if err := pg.proc.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-pg.watched
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	pg.address.port = port
	if err := pg.launch(t.Context()); err != nil {
		t.Fatal(err)
	}
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
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, limit, "another server", func() bool { return pg.PID() != first })
	if got := query(t, pg.URL(), `SELECT v FROM t`); got != "kept" {
		t.Fatalf("after the crash the row is %q", got)
	}
	if logs.FilterMessage("PostgreSQL has ended by itself").Len() != 1 {
		t.Error("the crash was not logged")
	}
}

func TestPostgresStopIsImmediateWhenItsTimeIsUp(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	pg, err := StartPostgres(t.Context(), PostgresConfig{DataDir: dir, Settings: small()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pg.Stop(ctx); err == nil {
		t.Log("the server was faster than its deadline") // allowed: a fast shutdown may win
	}
	if servesCluster(t.Context(), pg.PID(), pg.layout.cluster) {
		t.Fatal("the server still runs")
	}
	again, err := StartPostgres(t.Context(), PostgresConfig{DataDir: dir, Settings: small()})
	if err != nil {
		t.Fatalf("start after an immediate stop: %v", err)
	}
	stop(t, again)
}

func TestPostgresStartErrorCarriesTheLog(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	_, err := tryStart(t, PostgresConfig{DataDir: dir, Settings: map[string]string{"shared_buffers": "plenty"}})
	if _, ok := errors.AsType[*ServerError](err); !ok {
		t.Fatalf("got %v, want a ServerError", err)
	}
	mustSay(t, err, "shared_buffers", "plenty", "postgres.log")
	// A bad setting of one start does not spoil the next, and the lock was given back.
	query(t, start(t, PostgresConfig{DataDir: dir}).URL(), `SELECT 'up'`)
}

func TestPostgresConfigIsChecked(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]PostgresConfig{
		"DataDir":      {},
		"StartTimeout": {DataDir: "x", StartTimeout: -1},
		"fsync = off;": {DataDir: "x", Settings: map[string]string{"fsync = off;": ""}},
	} {
		if _, err := StartPostgres(t.Context(), config); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			mustSay(t, err, name)
		}
	}
}
