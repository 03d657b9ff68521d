package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	wqdatabase "github.com/tranchehq/tranche/workqueue/database"
)

// server is a serve whose end is the test's to see.
type server struct {
	*exec.Cmd
	out   io.Reader
	where map[string]string
	log   *testenv.Log
}

// ready waits until it says where everything is.
func (s *server) ready(t *testing.T) {
	t.Helper()
	if err := json.NewDecoder(s.out).Decode(&s.where); err != nil {
		t.Fatalf("serve did not start: %v: %s", err, s.log.String())
	}
}

// launch starts a serve on the test's database and NATS. With wait it returns when that is ready.
func launch(t *testing.T, wait bool, args ...string) *server {
	t.Helper()
	s := &server{where: map[string]string{}, log: &testenv.Log{}}
	s.Cmd = command(t, nil, append([]string{
		"--json", "serve", "--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--log-level", "warn",
		"--session-ttl", "1m",
	}, args...)...)
	s.Stderr = s.log
	var err error
	if s.out, err = s.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Process.Kill() }) // it has ended, unless the test failed
	if wait {
		s.ready(t)
	}
	return s
}

// End sends SIGTERM and returns how long the stop took, without the time in which the machine stood still.
func (s *server) End(t *testing.T) (took time.Duration, err error) {
	t.Helper()
	w := testenv.NewWatch(t)
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = s.Wait()
	return w.Ran(), err
}

// slack is of a stop, beyond its grace. It is much for a busy machine: a stop that waited for a PostgreSQL that is
// silent would take 11 s, or 15.
const slack = 8 * time.Second

// endlessUpload begins a run whose items never end.
func endlessUpload(t *testing.T, where string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(where, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	var rows bytes.Buffer
	for i := range 40_000 {
		fmt.Fprintf(&rows, "%d,%s\n", i, strings.Repeat("x", 100))
	}
	_, err = fmt.Fprintf(conn, "POST /api/v1/runs?endpoint=echo HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Length: 99999999\r\n\r\nid,name\n%s", rows.String())
	if err != nil {
		t.Fatal(err)
	}
}

// An upload that never ends holds a stop up for its share of the grace, and is over before the session is.
func TestAStopEndsUploadsFirst(t *testing.T) {
	t.Parallel()
	const grace = 40 * time.Second // a busy machine needs time to take 40,000 rows back
	const atMost = 5 + wqdatabase.ReservedConns
	database := testenv.Database(t)
	s := launch(t, true, "--database", database, "--nats", testenv.NATS(t).URL(), "--grace", grace.String(),
		"--max-connections", strconv.Itoa(atMost-wqdatabase.ReservedConns))
	pool := testenv.Connect(t, database)
	number := func(query string) (n int) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	endlessUpload(t, s.where["api"])
	eventually(t, "the run is loading", func() bool { return number(`SELECT count(*) FROM batchrun`) == 1 })
	eventually(t, fmt.Sprintf("serve has 2 to %d connections that bound their waits", atMost), func() bool {
		conns := number(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'tranche'`)
		return conns >= 2 && conns <= atMost // some may be ending yet
	})
	took, err := s.End(t)
	if err != nil || took > grace+slack {
		t.Errorf("the stop took %s, %v; want %s: %s", took, err, grace, s.log.String())
	}
	if n := number(`SELECT count(*) FROM batchrun`); n != 0 {
		t.Errorf("%d runs are half loaded", n)
	}
	if n := number(`SELECT count(*) FROM node_session WHERE ended_at IS NULL`); n != 0 {
		t.Error("the session was not ended")
	}
}

// A PostgreSQL that has gone silent does not hold a stop up beyond its grace. What is left is said.
func TestAStopIsBounded(t *testing.T) {
	t.Parallel()
	const grace = time.Second
	direct, err := pgconn.ParseConfig(testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	_, address := pgconn.NetworkAddress(direct.Host, direct.Port)
	proxy := testenv.NewProxy(t, address)
	through := url.URL{Scheme: "postgres", User: url.UserPassword(direct.User, direct.Password), Host: proxy.Addr(),
		Path: direct.Database, RawQuery: "sslmode=disable"}
	s := launch(t, true, "--database", through.String(), "--nats", testenv.NATS(t).URL(), "--grace", grace.String())
	proxy.Stall(testenv.Up, testenv.Down)
	took, err := s.End(t)
	if took > grace+slack {
		t.Errorf("the stop took %s; want %s", took, grace)
	}
	if text := s.log.String(); err == nil || !strings.Contains(text, "--grace") {
		t.Errorf("it ended with %v and does not say what was left: %s", err, text)
	}
}

// Without NATS a serve says so, and its API is there to say it too.
func TestServeWithoutNATS(t *testing.T) {
	t.Parallel()
	s := launch(t, false, "--database", testenv.Database(t), "--nats", "nats://127.0.0.1:1", "--grace", ample.String())
	const before, after = "waiting for NATS, which does not answer at nats://127.0.0.1:1", " answers, with status 503"
	eventually(t, "serve says what it waits for", func() bool { return strings.Contains(s.log.String(), before) })
	_, rest, _ := strings.Cut(s.log.String(), "the API at ")
	where, _, found := strings.Cut(rest, after)
	if !found {
		t.Fatalf("it does not say where the API is: %s", s.log.String())
	}
	for path, want := range map[string]int{
		"/healthz": 200, "/readyz": 503, "/api/v1/runs": 200, "/api/v1/endpoints": 503,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, where+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != want || want == 503 && !strings.Contains(string(text), "NATS") {
			t.Errorf("%s: %d %s, %v; want %d", path, answer.StatusCode, text, err, want)
		}
	}
	if took, err := s.End(t); err != nil || took > soon {
		t.Errorf("the stop took %s, %v: %s", took, err, s.log.String())
	}
}

func TestSettingsOfStreams(t *testing.T) {
	t.Parallel()
	at := testenv.NATS(t).URL()
	s := launch(t, true, "--database", testenv.Database(t), "--nats", at, "--work-max-bytes", "64MiB",
		"--reply-max-bytes", "1000000", "--stage-max-bytes", "5MiB", "--flow-max-bytes", "6MiB", "--dead-max-bytes", "7MiB",
		"--stream-replicas", "1")
	js, err := jetstream.New(testenv.Dial(t, at), jetstream.WithDefaultTimeout(patienceInTests))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int64{
		wire.StreamWork: 64 << 20, wire.StreamReply: 1_000_000,
		wire.StreamEvent: stream.DefaultEventMaxBytes, wire.StreamStage: 5 << 20,
		wire.StreamFlow: 6 << 20, wire.StreamDead: 7 << 20,
	} {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := stream.CachedInfo().Config.MaxBytes; got != want {
			t.Errorf("stream %s has room for %d bytes; want %d", name, got, want)
		}
	}
	if _, err := s.End(t); err != nil {
		t.Errorf("serve ended with %v: %s", err, s.log.String())
	}
}

// A demo whose reader goes away stops its servers and leaves no data of theirs.
func TestADemoThatNobodyReads(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "demo-") //nolint:usetesting // a private PostgreSQL has to get through to it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a failed test may leave more
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	place := filepath.Join(dir, "bank")
	cmd := command(t, nil, "demo", "--dir", place, "--accounts", "300", "--pdfs", "50")
	var log testenv.Log
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_ = out.Close() // as head does
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != cli.ExitOther {
		t.Errorf("the demo ended with %v; want exit code 1: %s", err, log.String())
	}
	if left, err := os.ReadDir(filepath.Join(place, "servers")); !os.IsNotExist(err) {
		t.Errorf("the demo left %v, %v: %s", left, err, log.String())
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	testenv.Until(t, patienceInTests, what, holds)
}

func TestRedactedLeavesOutPasswords(t *testing.T) {
	t.Parallel()
	got := redacted("nats://user:canary@one:4222,tok@two", "")
	if got != "nats://one:4222,nats://two" {
		t.Errorf("got %q", got)
	}
}
