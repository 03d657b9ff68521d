package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	wqdatabase "github.com/tranchehq/tranche/workqueue/database"
)

// server is a serve whose end is the test's to see.
type server struct {
	*exec.Cmd
	out   io.Reader
	where map[string]string
	log   *testenv.Log
}

func (s *server) ready(t *testing.T) {
	t.Helper()
	testenv.MustSame(t, json.NewDecoder(s.out).Decode(&s.where), nil, "serve did not start: %s", s.log.String())
}

// launch starts a serve on the test's database and NATS. With wait it returns when that is ready.
func launch(t *testing.T, wait bool, args ...string) *server {
	t.Helper()
	return launchIn(t, nil, wait, args...)
}

func launchIn(t *testing.T, env []string, wait bool, args ...string) *server {
	t.Helper()
	s := &server{where: map[string]string{}, log: &testenv.Log{}}
	s.Cmd = command(t, env, append([]string{
		"--json", "serve", "--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--log-level", "warn",
		"--session-ttl", "1m",
	}, args...)...)
	s.Stderr = s.log
	s.out = testenv.Must(s.StdoutPipe())(t)
	testenv.NoError(t, s.Start())
	t.Cleanup(func() { _ = s.Process.Kill() }) // it ended, unless the test failed
	if wait {
		s.ready(t)
	}
	return s
}

// End sends SIGTERM and returns how long the stop took, without the time in which the machine was stalled.
func (s *server) End(t *testing.T) (took time.Duration, err error) {
	t.Helper()
	w := testenv.NewWatch(t)
	err = s.stop()
	return w.Ran(), err
}

func (s *server) stop() error {
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return s.Wait()
}

// slack is of a stop, beyond its grace. It is much for a busy machine: a stop that waited for a PostgreSQL that is
// silent would take 11 s, or 15.
const slack = 8 * time.Second

// endlessUpload begins a run whose items never end.
func endlessUpload(t *testing.T, where string) {
	t.Helper()
	conn := testenv.Must((&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(where, "http://")))(t)
	t.Cleanup(func() { _ = conn.Close() })
	var rows bytes.Buffer
	for i := range 40_000 {
		fmt.Fprintf(&rows, "%d,%s\n", i, strings.Repeat("x", 100))
	}
	testenv.Must(fmt.Fprintf(conn, "POST /api/v1/runs?endpoint=echo HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Length: 99999999\r\n\r\nid,name\n%s", rows.String()))(t)
}

// An upload that never ends holds a stop up for its share of the grace, and is over before the session is.
func TestAStopEndsUploadsFirst(t *testing.T) {
	t.Parallel()
	const grace = 20 * time.Second // a busy machine needs time to take 40,000 rows back
	const atMost = 5 + wqdatabase.ReservedConns
	database := testenv.Database(t)
	s := launch(t, true, "--database", database, "--nats", testenv.NATS(t).URL(), "--shutdown-timeout", grace.String(),
		"--max-connections", strconv.Itoa(atMost-wqdatabase.ReservedConns))
	pool := testenv.Connect(t, database)
	number := func(query string) (n int) {
		t.Helper()
		testenv.NoError(t, pool.QueryRow(t.Context(), query).Scan(&n))
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
	testenv.Same(t, number(`SELECT count(*) FROM batchrun`), 0, "runs are half loaded")
	testenv.Same(t, number(`SELECT count(*) FROM node_session WHERE ended_at IS NULL`), 0, "the session was not ended")
}

// A PostgreSQL that has gone silent does not hold a stop up beyond its grace. What is left is said.
func TestAStopIsBounded(t *testing.T) {
	t.Parallel()
	const grace = time.Second
	through, proxy := testenv.Through(t, testenv.Database(t))
	s := launch(t, true, "--database", through, "--nats", testenv.NATS(t).URL(), "--shutdown-timeout", grace.String())
	proxy.Stall(testenv.Up, testenv.Down)
	took, err := s.End(t)
	if took > grace+slack {
		t.Errorf("the stop took %s; want %s", took, grace)
	}
	if text := s.log.String(); err == nil || !strings.Contains(text, "--shutdown-timeout") {
		t.Errorf("it ended with %v and does not say what was left: %s", err, text)
	}
}

// Without NATS a serve says so, and its API is there to say it too.
func TestServeWithoutNATS(t *testing.T) {
	t.Parallel()
	s := launch(t, false, "--database", testenv.Database(t), "--nats", "nats://127.0.0.1:1",
		"--shutdown-timeout", ample.String())
	where := s.waitingAPI(t)
	testenv.Has(t, s.log.String(), "waiting for NATS, which does not answer at nats://127.0.0.1:1", "serve says")
	for path, want := range map[string]int{
		"/healthz": 200, "/readyz": 503, "/api/v1/runs": 200, "/api/v1/endpoints": 503,
	} {
		code, text := testenv.Get(t, where+path)
		if code != want || want == 503 && !strings.Contains(text, "NATS") {
			t.Errorf("%s: %d %s; want %d", path, code, text, want)
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
	js := testenv.Must(jetstream.New(testenv.Dial(t, at), jetstream.WithDefaultTimeout(patienceInTests)))(t)
	for name, want := range map[string]int64{
		wire.StreamWork: 64 << 20, wire.StreamReply: 1_000_000,
		wire.StreamEvent: stream.DefaultEventMaxBytes, wire.StreamStage: 5 << 20,
		wire.StreamFlow: 6 << 20, wire.StreamDead: 7 << 20,
	} {
		stream := testenv.Must(js.Stream(t.Context(), name))(t)
		testenv.Same(t, stream.CachedInfo().Config.MaxBytes, want, "bytes of room in stream %s", name)
	}
	_, err := s.End(t)
	testenv.Same(t, err, nil, "serve ended: %s", s.log.String())
}

// A demo whose reader goes away stops its servers and leaves no data of theirs.
func TestADemoThatNobodyReads(t *testing.T) {
	t.Parallel()
	place := filepath.Join(testenv.Dir(t), "bank")
	cmd := command(t, nil, "demo", "--dir", place, "--accounts", "300", "--pdfs", "50")
	var log testenv.Log
	cmd.Stderr = &log
	out := testenv.Must(cmd.StdoutPipe())(t)
	testenv.NoError(t, cmd.Start())
	testenv.Must(bufio.NewReader(out).ReadString('\n'))(t)
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
	testenv.Same(t, got, "nats://one:4222,nats://two", "the addresses")
}

// A file of connections that is wrong stops serve before it starts anything, with the line and the field.
func TestServeReadsConnections(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "connections.yaml")
	for text, want := range map[string]string{
		"http: {allow_private: [127.0.0.1]}": "",
		"http:\n  allow_privat: [127.0.0.1]": path +
			":2:3: http.allow_privat: there is no such field; there are allow_private",
	} {
		testenv.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		p := &parts{}
		err := (&serveCommand{Connections: path}).openConnections(p)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		if want == "" && (p.fetchers[workqueue.KindHTTP] == nil || p.fetchers[workqueue.KindSQL] == nil) {
			t.Error("there are no fetchers")
		}
		for _, undo := range p.undo {
			testenv.NoError(t, undo(t.Context()))
		}
	}
}

// A serve that starts before its PostgreSQL, which was killed and has to recover, waits for it.
func TestServeWaitsForPostgreSQL(t *testing.T) {
	t.Parallel()
	cluster := testenv.Postgres(t)
	cluster.Kill(t)
	s := launch(t, false, "--database", cluster.URL(), "--nats", testenv.NATS(t).URL(), "--database-wait", "10m")
	eventually(t, "serve says what it waits for", func() bool {
		return strings.Contains(s.log.String(), "PostgreSQL does not answer; waiting for it, up to 10m00s in all")
	})
	cluster.Start(t)
	s.ready(t)
	_, err := s.End(t)
	testenv.Same(t, err, nil, "serve ended: %s", s.log.String())
}

// One that is never there ends the start, and a signal the wait.
func TestServeDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	const nowhere = "postgres://u:p@127.0.0.1:1/x?sslmode=disable"
	s := launch(t, false, "--database", nowhere, "--database-wait", "200ms")
	const says = "127.0.0.1:1/x: PostgreSQL does not answer, and was waited for 0.2s (--database-wait)"
	err := s.Wait()
	if err == nil || s.ProcessState.ExitCode() != cli.ExitOther || !strings.Contains(s.log.String(), says) {
		t.Errorf("it ended with %v: %s", err, s.log.String())
	}
	s = launch(t, false, "--database", nowhere)
	eventually(t, "serve waits", func() bool { return strings.Contains(s.log.String(), "up to 2m00s in all") })
	if _, err := s.End(t); err != nil || !strings.Contains(s.log.String(), "stopped before it had begun") {
		t.Errorf("it was stopped, and ended with %v: %s", err, s.log.String())
	}
}

// A serve sends what it has traced at the latest when it stops; what it published for no service included.
func TestServeSendsSpans(t *testing.T) {
	t.Parallel()
	var batches atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if path.Base(r.URL.Path) == "traces" {
			batches.Add(1)
		}
	}))
	t.Cleanup(receiver.Close)
	database := testenv.Database(t)
	s := launch(t, true, "--database", database, "--nats", testenv.NATS(t).URL(), "--trace-otlp", receiver.URL)
	started := runProgram(t, nil, "id\n1\n", "run", "start", "--url", s.where["api"], "--endpoint", "nobody",
		"--items", "-", "--format", "csv", "--key", "id")
	testenv.MustSame(t, started.code, 0, "the run did not start: %+v", started)
	pool := testenv.Connect(t, database)
	eventually(t, "the slice is sent", func() bool {
		var sent int
		testenv.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM work_slice WHERE state = 'sent'`).Scan(&sent))
		return sent == 1
	})
	_, err := s.End(t)
	testenv.Same(t, err, nil, "serve ended: %s", s.log.String())
	if batches.Load() == 0 {
		t.Errorf("no spans came: %s", s.log.String())
	}
}

// waitingAPI is where the API of a serve is that waits for something.
func (s *server) waitingAPI(t *testing.T) string {
	t.Helper()
	const before, after = "the API at ", " answers, with status 503"
	eventually(t, "serve says that it waits", func() bool { return strings.Contains(s.log.String(), after) })
	_, rest, _ := strings.Cut(s.log.String(), before)
	where, _, _ := strings.Cut(rest, after)
	return where
}

func readyz(t *testing.T, where string) (int, string) {
	t.Helper()
	return testenv.Get(t, where+"/readyz")
}

// soon is how long a serve that waits for something takes to end at most: less than half of its grace, which is
// more than a busy machine needs.
const (
	ample = time.Minute
	soon  = ample / 2
)

// A PostgreSQL whose disk is full is named, and serve continues once there is space.
func TestServeNamesAFullDisk(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	pool := testenv.Connect(t, database)
	// What PostgreSQL says when a file cannot grow.
	testenv.Must(pool.Exec(t.Context(), `
		CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
			$$BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END$$;
		CREATE TRIGGER full_disk BEFORE INSERT ON node_session EXECUTE FUNCTION full_disk();`))(t)
	s := launch(t, false, "--database", database, "--nats", testenv.NATS(t).URL(), "--shutdown-timeout", ample.String())
	where := s.waitingAPI(t)
	eventually(t, "the reason is named", func() bool {
		code, text := readyz(t, where)
		return code == 503 && strings.Contains(text, "PostgreSQL's disk is full")
	})
	b := &bench{T: t, url: where}
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-"), cli.ExitUnreachable, "disk is full")
	testenv.Must(pool.Exec(t.Context(), `DROP TRIGGER full_disk ON node_session`))(t)
	eventually(t, "it continues by itself", func() bool { code, _ := readyz(t, where); return code == 200 })
	if took, err := s.End(t); err != nil || took > soon {
		t.Errorf("serve took %s to end, %v: %s", took, err, s.log.String())
	}
}

// While the only standby that must confirm commits is gone, readiness, health, explanations and a metric name it.
func TestServeNamesAStandbyThatIsGone(t *testing.T) {
	t.Parallel()
	postgres := testenv.Postgres(t)
	s := launch(t, true, "--database", postgres.URL(), "--nats", testenv.NATS(t).URL(), "--session-ttl", "3s",
		"--metrics-listen", "127.0.0.1:0")
	b := &bench{T: t, url: s.where["api"]}
	b.want(b.pipe("id\n1\n2\n3\n", "run", "start", "--endpoint", "nowhere", "--items", "-", "--name", "it", "--chunk", "1",
		"--in-flight", "1"), 0) // so that some wait for a node
	admin := testenv.Connect(t, postgres.URL())
	set := func(names string) {
		t.Helper()
		for _, statement := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + names + "'",
			"SELECT pg_reload_conf()"} {
			testenv.Must(admin.Exec(t.Context(), statement))(t)
		}
	}
	set("gone")
	says := func(what, text string, look func() string) {
		t.Helper()
		eventually(t, what+" says "+text, func() bool { return strings.Contains(look(), text) })
	}
	of := func(args ...string) func() string { return func() string { return b.tranche(args...).out } }
	says("/readyz", "commits wait for a standby", func() string {
		var waited bool // what gives up sooner is noticed, too
		testenv.NoError(t, admin.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE wait_event = 'SyncRep' AND query_start < tranche_now() - interval '2 s')`).Scan(&waited))
		_, text := readyz(t, b.url)
		return cli.If(!waited, "%v", text)
	})
	says("health", "Commits wait for a standby", of("health"))
	says("explain", "waiting for a standby of PostgreSQL", of("run", "explain", "it"))
	says("the metric", `tranche_node_unready{reason="standby"} 1`, func() string {
		_, text := testenv.Get(t, s.where["metrics"])
		return text
	})
	set("")
	says("/readyz", "ready\n", func() string { _, text := readyz(t, b.url); return text })
	testenv.Must(s.End(t))(t)
}

// natsOf runs a server by a configuration of the test's, on a free port.
func natsOf(t *testing.T, configuration string) (url string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	text := fmt.Sprintf("host: 127.0.0.1\nport: -1\n%s\n", strings.ReplaceAll(configuration, "DIR", t.TempDir()))
	testenv.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	options := testenv.Must(natsserver.ProcessConfigFile(file))(t)
	options.NoSigs, options.NoLog, options.AuthTimeout = true, true, time.Minute.Seconds()
	ns := testenv.Must(natsserver.NewServer(options))(t)
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	return ns.ClientURL()
}

const jetstreamOn = "jetstream { store_dir: \"DIR\" }\n"

// What cannot fix itself ends a start, with code 1 and the remedy.
func TestAStartEndsWithTheRemedy(t *testing.T) {
	t.Parallel()
	const users = "authorization { users: [{ user: u, password: right }] }\n"
	const accounts = "accounts { A: { users: [{ user: u, password: right }] }, B: { jetstream: enabled } }\n"
	in := func(url, user string) string { return strings.Replace(url, "://", "://"+user+"@", 1) }
	tests := map[string]struct {
		config string
		user   string
		args   []string
		says   []string
	}{
		"password": {config: jetstreamOn + users, user: "u:wrong",
			says: []string{"--nats", "refuses this user", "check the user and password", "--nats-creds", "127.0.0.1:"}},
		"no jetstream": {says: []string{"JetStream is not enabled at NATS at nats://127.0.0.1:", "nats-server -js"}},
		"account": {config: jetstreamOn + accounts, user: "u:right",
			says: []string{"not enabled for the account", "jetstream: enabled"}},
		"room": {config: "jetstream { store_dir: \"DIR\", max_file: 64MiB }",
			says: []string{"no room for the streams", "4.2 GiB (4496293888 bytes)", "max_file_store", "--work-max-bytes"}},
		"replicas": {config: jetstreamOn, args: []string{"--stream-replicas", "3"},
			says: []string{"single server", "3 are set", "--stream-replicas"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := natsOf(t, test.config)
			if test.user != "" {
				url = in(url, test.user)
			}
			ends(t, append([]string{"--database", testenv.Database(t), "--nats", url}, test.args...), test.says...)
		})
	}
}

// A run whose key is lost keeps each node from starting, until it is cancelled, or its load discarded. It is not
// resumed without its key, and stays if its key is given.
func TestRunsWithoutTheirKeyAreCancelled(t *testing.T) {
	t.Parallel()
	b := storetest.Setup(t)
	key := bytes.Repeat([]byte{1}, 32)
	with, without := &parts{store: b.Store, keys: [][]byte{key}}, &parts{store: wqdatabase.New(b.Pool)}
	b.Expire(b.Session)
	testenv.NoError(t, (&serveCommand{}).useKeys(t.Context(), with, zap.NewNop()))
	b.Session = b.Open()
	run, load := b.Load(storetest.Request(), 3), b.Load(storetest.Request(), 3)
	b.Exec(`UPDATE batchrun SET state = 'loading', items = 0, sealed_at = NULL, started_at = NULL WHERE id = $1`, load)
	serve := &serveCommand{}
	err := serve.useKeys(t.Context(), without, zap.NewNop())
	testenv.Says(t, err, "like 1 more", "lost")
	testenv.Says(t, err, "serve --cancel-run "+run.String()+","+load.String(), "the remedy")
	serve.CancelRun = []workqueue.RunID{run, load}
	states := func() (all string) {
		sql := "SELECT string_agg(state, ' ' ORDER BY id) FROM batchrun"
		testenv.NoError(t, b.Pool.QueryRow(t.Context(), sql).Scan(&all))
		return all
	}
	testenv.NoError(t, serve.useKeys(t.Context(), with, zap.NewNop()))
	testenv.Same(t, states(), "running loading", "with the key")
	testenv.Says(t, serve.useKeys(t.Context(), without, zap.NewNop()), "runs with a key", "while a node has it")
	b.Expire(b.Session)
	testenv.NoError(t, serve.useKeys(t.Context(), without, zap.NewNop()))
	testenv.Same(t, states(), "cancelled", "without it")
	serve.CancelRun = []workqueue.RunID{run, workqueue.NewRunID()}
	err = serve.useKeys(t.Context(), without, zap.NewNop())
	testenv.Says(t, err, serve.CancelRun[1].String()+": there is no such run", "a mistyped ID, after one that ended")
	_, err = control.New(without.store).Resume(t.Context(), control.Control{Run: run, Actor: "ann"}, nil)
	testenv.Says(t, err, "does not have", "a resume")
}

// ends waits until a serve ends with code 1, and looks whether it has said why.
func ends(t *testing.T, args []string, says ...string) {
	t.Helper()
	s := launch(t, false, args...)
	err := s.Wait()
	text := s.log.String()
	if err == nil || s.ProcessState.ExitCode() != cli.ExitOther {
		t.Errorf("it ended with %v: %s", err, text)
	}
	last := text[strings.LastIndex(strings.TrimRight(text, "\n"), "\n")+1:]
	for _, want := range says {
		testenv.Has(t, last, want, "the last line")
	}
	if strings.Contains(last, "wrong") {
		t.Errorf("it says the password: %s", text)
	}
}

func TestAStartRefusesOtherURLs(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	ends(t, []string{"--database", database, "--nats", "http://127.0.0.1:4222"}, `begins with \"http://\"`, "nats://",
		"--nats")
	ends(t, []string{"--database", "mysql://u:wrong@127.0.0.1/x"}, `begins with \"mysql://\"`, "postgres://", "--database")
	ends(t, []string{"--database", strings.Replace(database, "://", "://nobody_of_this_name:wrong@", 1)}, "--database")
}

// A first start that could not have its streams leaves the next one to say other things of them.
func TestTheNextFirstStart(t *testing.T) {
	t.Parallel()
	database, url := testenv.Database(t), natsOf(t, jetstreamOn)
	ends(t, []string{"--database", database, "--nats", url, "--stream-replicas", "3"}, "single server")
	s := launch(t, true, "--database", database, "--nats", url, "--stream-replicas", "1", "--work-max-bytes", "7MiB")
	b := &bench{T: t, url: s.where["api"]}
	b.want(b.tranche("streams"), 0, "replicas 1", "requests 7MiB")
	testenv.Must(s.End(t))(t)
}

func TestNATSConfig(t *testing.T) {
	t.Parallel()
	b, seeds := &bench{T: t}, regexp.MustCompile(`\bS[A-Z][A-Z0-9]{56}\b`)
	roles := []string{"nats", "config", "--service", "accounts=accounts,other", "--caller", "web=accounts",
		"--viewer", "ops"}
	b.want(runProgram(t, nil, "", roles...), cli.ExitOK, `"TRANCHE-accounts": {`, "$WEB_PASSWORD",
		`{ service: "tranche.direct.accounts", response_threshold: "1s", accounts: ["TRANCHE", "TRANCHE-web"] }`,
		`{ service: "$JS.ACK.TRANCHE_WORK.accounts.*.*.*.*.*", response_threshold: "5s", accounts: ["TRANCHE-accounts"] }`)
	b.want(runProgram(t, nil, "", append(roles, "--operator")...), cli.ExitUsage, "--out")
	b.want(runProgram(t, nil, "", append(roles, "--caller", "x=y")...), cli.ExitUsage, "which no service has")
	b.want(runProgram(t, nil, "", append(roles, "--caller", "x=")...), cli.ExitUsage, "--caller")
	for ending, args := range map[string][]string{".nk": nil, ".creds": {"--operator"}} {
		dir := t.TempDir()
		b.want(runProgram(t, nil, "", append(append(roles, "--out", dir), args...)...), cli.ExitOK, "nats-server -c "+dir,
			filepath.Join(dir, "ops"+ending))
		conf, err := os.ReadFile(filepath.Join(dir, "server.conf"))
		if err != nil || strings.Contains(string(conf), "PASSWORD") || seeds.Match(conf) {
			t.Errorf("the configuration has a secret: %v", err)
		}
	}
}

// alone is a serve with servers of its own. A stop of it that is held up does not end by itself.
func alone(t *testing.T) (s *server, postmaster string) {
	t.Helper()
	data := testenv.Dir(t)
	s = launch(t, true, "--data-dir", data, "--nats-listen", "127.0.0.1:0", "--shutdown-timeout", "10m")
	text := testenv.Must(os.ReadFile(filepath.Join(data, "postgres", "cluster", "postmaster.pid")))(t)
	postmaster, _, _ = strings.Cut(string(text), "\n")
	return s, postmaster
}

// isRunning reports whether the process is there and is not merely waiting to be collected.
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
	testenv.NoError(t, s.Process.Kill())
	_ = s.Wait() // killed
	eventually(t, "PostgreSQL ends", func() bool { return !isRunning(postmaster) })
}

// A second signal is heeded immediately, and leaves nothing running either.
func TestASecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // as above
	}
	s, postmaster := alone(t)
	endlessUpload(t, s.where["api"]) // it holds the stop up
	b := &bench{T: t, url: s.where["api"]}
	eventually(t, "the run is loading", func() bool { return strings.Contains(b.tranche("run", "list").out, "loading") })
	testenv.NoError(t, s.Process.Signal(syscall.SIGTERM))
	where := strings.TrimPrefix(s.where["api"], "http://")
	eventually(t, "the stop begins", func() bool { return !answers(t.Context(), where) })
	testenv.NoError(t, s.Process.Signal(syscall.SIGTERM))
	_ = s.Wait() // killed
	if status, ok := s.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
		t.Errorf("serve ended with %s; want it cut off by the signal", s.ProcessState)
	}
	eventually(t, "PostgreSQL ends", func() bool { return !isRunning(postmaster) })
}

// A supervisor's SIGHUP does not end a serve, whatever else it does.
func TestServeIgnoresHangUp(t *testing.T) {
	t.Parallel()
	s := launch(t, true, "--database", testenv.Database(t), "--nats", testenv.NATS(t).URL(), "--log-level", "info")
	testenv.NoError(t, s.Process.Signal(syscall.SIGHUP))
	eventually(t, "it says so", func() bool { return strings.Contains(s.log.String(), "SIGHUP is ignored") })
	testenv.Must(s.End(t))(t)
}

func answers(ctx context.Context, where string) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", where)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// A server that takes a connection and never answers does not hold a command indefinitely.
func TestACommandGivesASilentServerUp(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // no one accepts; the kernel connects
	testenv.NoError(t, err)
	defer func() { _ = l.Close() }()
	b := &bench{T: t, url: "http://" + l.Addr().String()}
	for _, args := range [][]string{
		{"run", "list"}, {"run", "watch", "last"}, {"run", "export", "last"}, {"doctor"}, {"endpoints"},
	} {
		b.want(b.tranche(append(args, "--timeout", "200ms")...), cli.ExitUnreachable, b.url, "200ms", "--timeout")
	}
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--timeout", "200ms"),
		cli.ExitUnreachable, b.url)
	b.want(b.tranche("run", "list", "--timeout", "-1s"), 2, "--timeout")
}

// From a server that no one can log in to, by the line that it prints, to users with roles.
func TestTheFirstTokenAndThoseAfter(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	s := launch(t, true, "--database", database, "--nats", testenv.NATS(t).URL(), "--auth", "on")
	eventually(t, "serve says how to make a token", func() bool {
		return strings.Contains(s.log.String(), "tranche token create --database ")
	})
	b := &bench{T: t, url: s.where["api"]}
	b.want(b.tranche("run", "list"), cli.ExitRefused, "--token-file")
	first := b.tranche("token", "create", "--database", database, "--name", "ann", "--role", "admin")
	secret := strings.TrimSpace(first.out)
	if first.code != cli.ExitOK || !access.WellFormed(secret) || strings.Contains(first.err, secret) {
		t.Fatalf("the first token: exit %d, %q: %s", first.code, first.out, first.err)
	}
	file := filepath.Join(t.TempDir(), "token")
	testenv.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o644))
	b.want(b.tranche("--token-file", file, "run", "list"), cli.ExitOK, "chmod 600") // others can read it
	testenv.NoError(t, os.Chmod(file, 0o600))
	as := func(flag, value string, args ...string) result {
		t.Helper()
		return b.tranche(append([]string{flag, value}, args...)...)
	}
	made := as("--token-file", file, "--json", "token", "create", "--name", "vic", "--role", "viewer",
		"--expires-in", "1h")
	b.want(made, cli.ExitOK)
	var vic client.CreatedToken
	if err := json.Unmarshal([]byte(made.out), &vic); err != nil || vic.CreatedBy != "ann" || vic.Role != "viewer" ||
		vic.ExpiresAt == nil {
		t.Fatalf("a token through the API: %v: %s", err, made.out)
	}
	looks := runProgram(t, []string{"TRANCHE_URL=" + b.url, "TRANCHE_TOKEN=" + vic.Secret}, "", "run", "list")
	if looks.code != cli.ExitOK || looks.err != "" {
		t.Errorf("a viewer looks: exit %d: %s", looks.code, looks.err)
	}
	b.want(as("--token", vic.Secret, "run", "pause", "--all"), cli.ExitRefused, "role operator")
	list := as("--token-file", file, "token", "list")
	if b.want(list, cli.ExitOK, "vic"); strings.Contains(list.out, vic.Secret[3:]) {
		t.Errorf("the list is %s", list.out)
	}
	login, err := http.Post(b.url+"/api/v1/session", "application/json", strings.NewReader(`{"token":"`+vic.Secret+`"}`))
	if err != nil || login.Body.Close() != nil || login.StatusCode != http.StatusOK {
		t.Fatal(login, err)
	}
	b.want(as("--token-file", file, "session", "list"), cli.ExitOK, "vic", vic.ID[:8])
	b.want(as("--token-file", file, "session", "revoke", "vic"), cli.ExitOK, "vic")
	b.want(b.tranche("session", "revoke", "vic", "--database", database), cli.ExitOther, "vic")
	b.want(as("--token-file", file, "token", "rotate", "vic", "--overlap", "1h"), cli.ExitOK, access.Prefix, "of vic")
	b.want(b.tranche("token", "rotate", "ann", "--database", database), cli.ExitOK, access.Prefix)
	b.want(as("--token-file", file, "token", "revoke", vic.ID[:8]), cli.ExitOK)
	b.want(as("--token", vic.Secret, "run", "list"), cli.ExitRefused, "revoked")
	for _, wrong := range [][]string{
		{"--token", secret[:30], "run", "list"},
		{"--token", secret, "--token-file", file, "run", "list"},
		{"--token-file", file + ".not", "run", "list"},
		{"token", "create", "--name", "tranche", "--role", "admin"},
		{"token", "create", "--name", "x", "--role", "root"},
		{"token", "create", "--name", "x", "--role", "viewer", "--expires-in", "-1h"},
		{"token", "list", "--database", database, "--data-dir", t.TempDir()},
	} {
		if r := b.tranche(wrong...); r.code != cli.ExitUsage || strings.Contains(r.err, secret[:30]) {
			t.Errorf("%q: exit %d: %s", wrong[:2], r.code, r.err)
		}
	}
	nowhere := filepath.Join(t.TempDir(), "mistyped")
	b.want(b.tranche("token", "list", "--data-dir", nowhere), cli.ExitOther, nowhere)
	_, err = os.Stat(nowhere)
	testenv.Fails(t, err, "the mistyped directory was made")
	testenv.Must(s.End(t))(t)
	if strings.Contains(s.log.String(), secret[3:]) || strings.Contains(s.log.String(), vic.Secret[3:]) {
		t.Error("a secret is in the log")
	}
}
