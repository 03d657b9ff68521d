package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// alone is a serve with servers of its own.
func alone(t *testing.T) (s *server, postmaster string) {
	t.Helper()
	data := t.TempDir()
	// A private PostgreSQL runs as another user when the test is root's: it has to get through to its directory.
	for dir := data; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s = &server{where: map[string]string{}, log: &testenv.Log{}}
	s.Cmd = command(t, nil, "--json", "serve", "--data-dir", data, "--listen", "127.0.0.1:0", "--nats-listen",
		"127.0.0.1:0", "--log-level", "warn", "--grace", "10m") // a stop that is held up does not end by itself
	s.Stderr = s.log
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Process.Kill() }) // it has ended, unless the test failed
	if err := json.NewDecoder(out).Decode(&s.where); err != nil {
		t.Fatalf("serve did not start: %v: %s", err, s.log.String())
	}
	text, err := os.ReadFile(filepath.Join(data, "postgres", "cluster", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	postmaster, _, _ = strings.Cut(string(text), "\n")
	return s, postmaster
}

// runs reports whether the process is there and is not merely waiting to be collected.
func isRunning(pid string) bool {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
	return err == nil && len(text) > 0
}

// However a serve ends, its PostgreSQL ends with it.
func TestAKilledServeTakesItsPostgreSQLAlong(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // other kernels cannot; the next start finds the server, as TestServeAlone shows
	}
	s, postmaster := alone(t)
	if n, err := strconv.Atoi(postmaster); err != nil || n <= 1 || !isRunning(postmaster) {
		t.Fatalf("process %q is not its PostgreSQL", postmaster)
	}
	if err := s.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.Wait() // killed
	eventually(t, "PostgreSQL ends", func() bool { return !isRunning(postmaster) })
}

// A second signal is heeded at once, and leaves nothing running either.
func TestASecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // as above
	}
	s, postmaster := alone(t)
	endlessUpload(t, s.where["api"]) // it holds the stop up
	b := &bench{T: t, url: s.where["api"]}
	eventually(t, "the run is loading", func() bool { return strings.Contains(b.tranche("run", "list").out, "loading") })
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	where := strings.TrimPrefix(s.where["api"], "http://")
	eventually(t, "the stop begins", func() bool { return !answers(t.Context(), where) })
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = s.Wait() // killed
	if status, ok := s.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
		t.Errorf("serve ended with %s; want it cut off by the signal", s.ProcessState)
	}
	eventually(t, "PostgreSQL ends", func() bool { return !isRunning(postmaster) })
}

func answers(ctx context.Context, where string) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", where)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// A server that takes a connection and never answers does not hold a command for ever.
func TestACommandGivesASilentServerUp(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // nobody accepts; the kernel connects
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	b := &bench{T: t, url: "http://" + l.Addr().String()}
	for _, args := range [][]string{
		{"run", "list"}, {"run", "watch", "last"}, {"run", "export", "last"}, {"doctor"}, {"endpoints"},
	} {
		b.want(b.tranche(append(args, "--timeout", "200ms")...), 1, b.url, "200ms", "--timeout")
	}
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--timeout", "200ms"), 1, b.url)
	b.want(b.tranche("run", "list", "--timeout", "-1s"), 2, "--timeout")
}
