package testenv_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const (
	// childTest makes this binary, started again by a test, run only the test that waits to be killed.
	childTest = "TRANCHE_TEST_CHILD"
	foreign   = "TRANCHE_TEST_DATABASE"
)

// TestChild is what TestServersDieWithTheBinary kills. By itself it does nothing.
func TestChild(t *testing.T) {
	t.Parallel()
	if os.Getenv(childTest) == "" {
		return
	}
	_, _ = fmt.Fprintln(os.Stdout, "url", testenv.Database(t))
	<-t.Context().Done() // never
}

func TestServersDieWithTheBinary(t *testing.T) {
	t.Parallel()
	temp := shortTemp(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(environ(), childTest+"=1", "TMPDIR="+temp, "TRANCHE_TEST_DIR="+temp)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	url, found := strings.CutPrefix(strings.TrimSpace(line), "url ")
	if err != nil || !found {
		t.Fatalf("the child said %q (%v)", line, err)
	}
	if err := ping(t.Context(), url); err != nil {
		t.Fatalf("before the kill: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, time.Minute, "the server has gone too", func() bool { return ping(t.Context(), url) != nil })

	left, err := os.ReadDir(temp)
	if err != nil || len(left) != 1 {
		t.Fatalf("the kill left %v (%v), want the cluster's directory", left, err)
	}
	aged := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(temp, left[0].Name()), aged, aged); err != nil {
		t.Fatal(err)
	}
	next := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDatabasesAreMigratedAndApart$")
	next.Env = append(environ(), "TMPDIR="+temp, "TRANCHE_TEST_DIR="+temp)
	if out, err := next.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("the next binary left %v (%v)", left, err)
	}
}

// The first binary keeps the cluster that it made, for others to copy, and removes old ones and those half made.
func TestClustersAreKeptAndCopied(t *testing.T) {
	temp := shortTemp(t)
	t.Setenv("HOME", temp)
	t.Setenv("XDG_CACHE_HOME", temp)
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cache = filepath.Join(cache, "tranche-test")
	for _, stale := range []string{"old", "killed.new"} {
		if err := os.MkdirAll(filepath.Join(cache, stale, "cluster"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(filepath.Join(cache, "old"), old, old); err != nil {
		t.Fatal(err)
	}
	var kept os.FileInfo
	for range 2 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDatabasesAreMigratedAndApart$")
		cmd.Env = environ()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		left, err := filepath.Glob(filepath.Join(cache, "*", "cluster"))
		if err != nil || len(left) != 1 {
			t.Fatalf("there are %v (%v); want one cluster", left, err)
		}
		info, err := os.Stat(left[0])
		if err != nil {
			t.Fatal(err)
		}
		if kept != nil && !os.SameFile(info, kept) {
			t.Error("the second binary made another cluster; want a copy of the first one's")
		}
		kept = info
	}
}

func TestDatabasesOnAServerThatRuns(t *testing.T) {
	t.Parallel()
	cluster, temp := testenv.Postgres(t), shortTemp(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDatabasesAreMigratedAndApart$", "-test.v")
	cmd.Env = append(environ(), foreign+"="+cluster.URL(), "TMPDIR="+temp, "TRANCHE_TEST_DIR="+temp)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestDatabasesAreMigratedAndApart") {
		t.Fatalf("%v\n%s", err, out)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("it left %v (%v)", left, err)
	}
	var databases int
	pool := testenv.Connect(t, cluster.URL())
	err = pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_database WHERE datname LIKE 'tranche\_%'`).Scan(&databases)
	if err != nil || databases != 0 {
		t.Errorf("it left %d databases (%v)", databases, err)
	}
}

// shortTemp is a directory for a child's temporary files, open to the user that the server runs as.
func shortTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "te-") //nolint:usetesting // its path is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a server on its way out may still write
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

// environ is ours without the variables that tests set for children.
func environ() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, foreign+"=") && !strings.HasPrefix(kv, "TMPDIR=") {
			env = append(env, kv)
		}
	}
	return env
}

func ping(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// eventually polls until the condition holds.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	testenv.Until(t, within, what, holds)
}
