package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// A file of connections that is wrong stops serve before it starts anything, with the line and the field.
func TestServeReadsConnections(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "connections.yaml")
	for text, want := range map[string]string{
		"http: {allow_private: [127.0.0.1]}": "",
		"http:\n  allow_privat: [127.0.0.1]": path +
			":2:3: http.allow_privat: there is no such field; there are allow_private",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := &parts{}
		err := (&serveCommand{Connections: path}).openConnections(p)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		if want == "" && (p.fetchers[workqueue.KindHTTP] == nil || p.fetchers[workqueue.KindSQL] == nil) {
			t.Error("there are no fetchers")
		}
		for _, undo := range p.undo {
			if err := undo(t.Context()); err != nil {
				t.Error(err)
			}
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
		return strings.Contains(s.log.String(), "PostgreSQL is not there; waiting for it, up to 10m00s in all")
	})
	cluster.Start(t)
	s.ready(t)
	if _, err := s.End(t); err != nil {
		t.Errorf("serve ended with %v: %s", err, s.log.String())
	}
}

// One that is never there ends the start, and a signal the wait.
func TestServeDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	const nowhere = "postgres://u:p@127.0.0.1:1/x?sslmode=disable"
	s := launch(t, false, "--database", nowhere, "--database-wait", "200ms")
	const says = "127.0.0.1:1/x: PostgreSQL is not there, and was waited for 0.2s (--database-wait)"
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
	if started.code != 0 {
		t.Fatalf("the run did not start: %+v", started)
	}
	pool := testenv.Connect(t, database)
	eventually(t, "the slice is sent", func() bool {
		var sent int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM work_slice WHERE state = 'sent'`).Scan(&sent)
		if err != nil {
			t.Fatal(err)
		}
		return sent == 1
	})
	if _, err := s.End(t); err != nil {
		t.Errorf("serve ended with %v: %s", err, s.log.String())
	}
	if batches.Load() == 0 {
		t.Errorf("no spans came: %s", s.log.String())
	}
}

func TestWrongTracingSettings(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--trace-ratio", "2"}, "--trace-ratio is 2"},
		{[]string{"--trace-otlp", "collector:4317"}, "--trace-otlp: "},
		{[]string{"--trace-ratio", "NaN"}, "--trace-ratio is NaN"},
	} {
		got := runProgram(t, nil, "", append([]string{"serve"}, test.args...)...)
		if got.code != cli.ExitUsage || !strings.Contains(got.err, test.want) {
			t.Errorf("%v: %+v", test.args, got)
		}
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
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, where+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// soon is how long a serve that waits for something takes to end at the most: less than half of its grace, which is
// more than a busy machine needs.
const (
	ample = time.Minute
	soon  = ample / 2
)

// A PostgreSQL whose disk is full is named, and once there is room serve goes on by itself.
func TestServeNamesAFullDisk(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	pool := testenv.Connect(t, database)
	// What PostgreSQL says when a file cannot grow.
	_, err := pool.Exec(t.Context(), `
		CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
			$$BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END$$;
		CREATE TRIGGER full_disk BEFORE INSERT ON node_session EXECUTE FUNCTION full_disk();`)
	if err != nil {
		t.Fatal(err)
	}
	s := launch(t, false, "--database", database, "--nats", testenv.NATS(t).URL(), "--grace", ample.String())
	where := s.waitingAPI(t)
	eventually(t, "the reason is named", func() bool {
		code, text := readyz(t, where)
		return code == 503 && strings.Contains(text, "PostgreSQL has no room left on its disk")
	})
	b := &bench{T: t, url: where}
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-"), 1, "no room left on its disk")
	if _, err := pool.Exec(t.Context(), `DROP TRIGGER full_disk ON node_session`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it goes on by itself", func() bool { code, _ := readyz(t, where); return code == 200 })
	if took, err := s.End(t); err != nil || took > soon {
		t.Errorf("serve took %s to end, %v: %s", took, err, s.log.String())
	}
}

// natsOf runs a server by a configuration of the test's, on a free port.
func natsOf(t *testing.T, configuration string) (url string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	text := fmt.Sprintf("host: 127.0.0.1\nport: -1\n%s\n", strings.ReplaceAll(configuration, "DIR", t.TempDir()))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	options, err := natsserver.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	options.NoSigs, options.NoLog, options.AuthTimeout = true, true, time.Minute.Seconds()
	ns, err := natsserver.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	return ns.ClientURL()
}

const jetstreamOn = "jetstream { store_dir: \"DIR\" }\n"

// What cannot mend itself ends a start, with code 1 and the remedy.
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
			says: []string{"--nats", "refuses this user", "check the user and password", "127.0.0.1:"}},
		"no user":      {config: jetstreamOn + users, says: []string{"refuses this user", "--nats-creds"}},
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

// ends waits until a serve has ended with code 1, and looks whether it has said why.
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
		if !strings.Contains(last, want) {
			t.Errorf("it does not say %q: %s", want, text)
		}
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
	if _, err := s.End(t); err != nil {
		t.Error(err)
	}
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
