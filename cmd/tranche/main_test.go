package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// asProgram makes the test binary the program itself, so that tests run it as a process.
const asProgram = "TRANCHE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "1" {
		main()
	}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		ofTests := strings.HasPrefix(name, "TRANCHE_TEST_") || name == "TRANCHE_POSTGRES_BIN"
		if strings.HasPrefix(name, "TRANCHE_") && !ofTests {
			_ = os.Unsetenv(name) // commands of this process are not to heed it
		}
	}
	testenv.Main(m)
}

// bench is a serve as a process of its own, on the test's database and NATS.
type bench struct {
	*testing.T
	url      string
	nats     string
	database string
}

const patienceInTests = 2 * time.Minute

// command is the program as a process that the caller ends.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], args...)
	cmd.Env = append(append(testenv.PlainEnv(), asProgram+"=1"), env...)
	return cmd
}

func setup(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, nats: testenv.NATS(t).URL(), database: testenv.Database(t)}
	b.url = b.serve()["api"]
	return b
}

// serve starts a server, and returns what it says about itself. It is stopped before the test ends.
func (b *bench) serve() map[string]string {
	b.Helper()
	s := launch(b.T, true, "--database", b.database, "--nats", b.nats, "--shutdown-timeout", "1m")
	b.Cleanup(func() {
		testenv.Same(b, s.stop(), nil, "serve ended: %s", s.log.String())
	})
	return s.where
}

// byHand is what a person does at a server where others have done something before.
type byHand []func(*testing.T, *bench)

// on does all of it, one at a time, on one server.
func (all byHand) on(t *testing.T) {
	t.Helper()
	t.Parallel()
	shared := setup(t)
	for _, do := range all {
		_, name, _ := strings.Cut(runtime.FuncForPC(reflect.ValueOf(do).Pointer()).Name(), ".test")
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // one at a time
			do(t, &bench{T: t, url: shared.url, nats: shared.nats, database: shared.database})
		})
	}
}

func TestFirstSteps(t *testing.T) { //nolint:tparallel // its parts run one at a time, on one server
	byHand{testPlans, testSchedules, testRunNowThatFails, testMistakes, testARunOfAPlan, testABadPlanNamesFileAndLine,
		testTypesOfAPlan, testAPersonsDay, testEndpointsByHand, testHealthReady, testJSON}.on(t)
}

func TestRunsByHand(t *testing.T) { //nolint:tparallel // its parts run one at a time, on one server
	byHand{testReportsByHand, testRunGroups, testAGateOnTheCommandLine, testItemsWithASchema, testAnExportIsGivenBack,
		testAWaitEndsWhenNobodyComes, testItemsThatComeLater}.on(t)
}

func TestUpkeepByHand(t *testing.T) { //nolint:tparallel // its parts run one at a time, on one server
	byHand{testTheAuditLogByHand, testWhatPeopleMustDoByHand, testDeadLettersByHand, testARequeuedLetterIsServed,
		testTheQuarantineByHand}.on(t)
}

// echo is a service that greets, until the test ends. Those called bad, until fixed, get an error.
func (b *bench) echo(fixed <-chan struct{}) {
	b.Helper()
	nc := testenv.Dial(b.T, b.nats, nats.Name("echo"))
	svc := testenv.Must(endpoints.New(nc, endpoints.Config{Name: "echo", Version: "1.0.0"}))(b)
	type person struct {
		Name string `json:"name,omitempty"`
	}
	testenv.NoError(b, endpoints.HandleEach(svc, "echo", func(_ context.Context, p person) (map[string]string, error) {
		select {
		case <-fixed:
		default:
			if p.Name == "bad" {
				return nil, endpoints.Fail("NO_SUCH", "no one is \x1b[31mcalled\x1b[0m %s", p.Name)
			}
		}
		return map[string]string{"hello": p.Name}, nil
	}))
	testenv.Keep(b, b.Errorf, "the service", svc.Run)
}

type result struct {
	code     int
	out, err string
}

func (b *bench) tranche(args ...string) result { b.Helper(); return b.pipe("", args...) }

// pipe runs a command in this process, which a busy machine does in a fraction of the time that a process takes.
func (b *bench) pipe(stdin string, args ...string) result {
	b.Helper()
	var out, errs bytes.Buffer
	if b.url != "" && !slices.Contains(args, "--url") {
		args = append([]string{"--url", b.url}, args...)
	}
	code := run(b.Context(), args, &cli.Console{In: strings.NewReader(stdin), Out: &out, Err: &errs, Columns: 80})
	return result{code: code, out: out.String(), err: errs.String()}
}

func runProgram(t *testing.T, env []string, stdin string, args ...string) result {
	t.Helper()
	cmd := command(t, env, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); !errors.As(err, new(*exec.ExitError)) {
		testenv.NoError(t, err) // it could not be run at all
	}
	return result{code: cmd.ProcessState.ExitCode(), out: out.String(), err: errs.String()}
}

// want checks the exit code and that the output, both streams together, has all the texts.
func (b *bench) want(r result, code int, texts ...string) {
	b.Helper()
	testenv.Same(b, r.code, code, "exit code\n%s%s", r.out, r.err)
	for _, text := range texts {
		testenv.Has(b, r.out+r.err, text, "the output")
	}
	if strings.ContainsRune(r.out+r.err, '\x1b') && !strings.Contains(r.out, "\"\"hello") {
		b.Errorf("an escape sequence came through:\n%q", r.out+r.err)
	}
}

// wantSoon looks at something until that works and has all the texts: services on a busy machine may not always say in
// time that they listen.
func (b *bench) wantSoon(look []string, texts ...string) (r result) {
	b.Helper()
	lacks := func(text string) bool { return !strings.Contains(r.out, text) }
	eventually(b.T, fmt.Sprintf("tranche %s says %q", strings.Join(look, " "), texts), func() bool {
		r = b.tranche(look...)
		return r.code == 0 && !slices.ContainsFunc(texts, lacks)
	})
	b.want(r, 0, texts...)
	return r
}

const people = "id,name\n1,ann\n2,bad\n3,cy\n"

func testAPersonsDay(t *testing.T, b *bench) {
	t.Helper()
	fixed := make(chan struct{})
	b.echo(fixed)
	file := filepath.Join(t.TempDir(), "people.csv")
	testenv.NoError(t, os.WriteFile(file, []byte(people), 0o600))
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--items", file, "--name", "day", "--wait"), 3,
		"3 items", "keys from id", "2 of 3 items done, 1 failed", "tranche run rerun")
	b.want(b.tranche("run", "list"), 0, "day", "completed")
	b.want(b.tranche("run", "show", "day"), 0, "people.csv", "chunk 500", "2 done, 1 failed")
	b.want(b.tranche("run", "watch", "last"), 3, "100%")
	b.want(b.tranche("run", "errors", "day"), 0, "NO_SUCH", `\x1b[31mcalled`)
	b.want(b.tranche("run", "errors", "day", "--all"), 0, "2\tNO_SUCH\t")
	b.want(b.tranche("run", "item", "day", "2"), 0, "failed", "NO_SUCH", "echo@1.0.0", "ready")
	b.wantSoon([]string{"endpoints"}, "echo 1.0.0")
	b.want(b.tranche("doctor"), 0, "hold")
	b.want(b.tranche("doctor", "--database", b.database), 0, "hold")

	close(fixed)
	b.want(b.tranche("run", "rerun", "day", "--failed", "--chunk", "1", "--wait"), 0, "reruns 1 item", "3 of 3 items done")
	b.want(b.tranche("run", "errors", "day"), 0, "no failed items")
	out := filepath.Join(t.TempDir(), "out.csv")
	b.want(b.tranche("run", "export", "day", "--format", "csv", "--out", out), 0, "wrote")
	text, err := os.ReadFile(out)
	if err != nil || !strings.HasPrefix(string(text), "key,state,result,") || strings.Count(string(text), "done") != 3 {
		t.Errorf("the file is %q, %v", text, err)
	}
	b.want(b.tranche("run", "cancel", "day"), 7, "it is completed")
	b.want(b.tranche("migrate", "--database", b.database), 0, "up to date")
}

// Every command prints one JSON document and nothing else; streams print one a line.
func testJSON(t *testing.T, b *bench) {
	t.Helper()
	b.echo(nil)
	documents := func(code int, r result) {
		t.Helper()
		b.want(r, code)
		if !json.Valid([]byte(r.out)) {
			t.Errorf("not one JSON document: %s", r.out)
		}
	}
	documents(3, b.pipe(people, "--json", "run", "start", "--endpoint", "echo", "--items", "-", "--wait"))
	documents(0, b.pipe(people, "--json", "run", "start", "--endpoint", "echo", "--items", "-", "--idempotency-key", "k"))
	documents(0, b.pipe(people, "--json", "run", "start", "--endpoint", "echo", "--items", "-", "--idempotency-key", "k"))
	documents(3, b.tranche("--json", "run", "watch", "last"))
	documents(3, b.tranche("--json", "run", "rerun", "last", "--code", "NO_SUCH", "--wait"))
	for _, args := range [][]string{
		{"version"}, {"run", "list"}, {"run", "show", "last"}, {"run", "errors", "last"}, {"run", "item", "last", "1"},
		{"run", "rerun", "last", "--key", "1"}, {"endpoints"}, {"endpoints", "set", "echo", "--concurrency", "2"},
		{"endpoints", "show", "echo"}, {"dlq", "list"}, {"dlq", "requeue", "--all"},
		{"dlq", "drop", "--all"}, {"quarantine", "list"}, {"doctor"}, {"migrate", "--database", b.database},
		{"run", "export", "last", "--out", filepath.Join(t.TempDir(), "x")},
	} {
		documents(0, b.tranche(append(args, "--json")...))
	}
	for _, args := range [][]string{{"run", "errors", "last", "--all"}, {"run", "export", "last"}} {
		r := b.tranche(append(args, "--json")...)
		for line := range strings.Lines(r.out) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%v: not JSON: %s", args, line)
			}
		}
	}
}

func testMistakes(t *testing.T, b *bench) {
	t.Helper()
	start := func(items string, code int, text string, args ...string) {
		t.Helper()
		b.want(b.pipe(items, append([]string{"run", "start", "--endpoint", "echo", "--items", "-"}, args...)...), code, text)
	}
	start("id,name\n1,a\n2\n", 7, "line 3")
	start("id,name\n1,a\n1,b\n", 7, `key "1"`)
	start(people, 7, `no column "nope"`, "--key", "nope")
	start("", 7, "empty")
	start("id\n\xff\n", 7, "line 2")
	start(people, 2, "--chunk: 9999 is not within 1 to 8192", "--chunk", "9999")
	start(people, 2, "--on-duplicate", "--on-duplicate", "maybe")
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--items", "no-such-file"), 2, "no-such-file")
	b.want(b.tranche("run", "export", "last", "--out", "x.xslx"), 2, `unknown format "xslx"; use .ndjson, .csv`)
	b.want(b.tranche("run", "start", "--items", "-"), 2, "a plan file, the name of a saved plan, or --endpoint")
	b.want(b.tranche("run", "list"), 0, "no runs yet") // none of these left one

	start(people, 0, "no service listens on endpoint echo", "--name", "twin")
	start(people, 0, "3 items", "--name", "twin")
	start("id\n1\n1\n", 0, "1 duplicate skipped", "--on-duplicate", "skip")
	b.want(b.tranche("run", "show", "nope"), 7, "nope", "tranche run list")
	b.want(b.tranche("run", "show", "twin"), 7, "fits 2 runs")
	b.want(b.tranche("run", "show", "0"), 7, "no run has")
	b.want(b.tranche("run", "item", "last", "nobody"), 7, "no item has this key")
	b.want(b.tranche("run", "rerun", "last", "--failed"), 7, "nothing to rerun")
	b.want(b.tranche("run", "rerun", "last"), 2, "--failed, --key K, --keys FILE, --code C")
	b.want(b.tranche("run", "rerun", "last", "--failed", "--key", "1"), 2, "--failed")
	b.want(b.tranche("run", "rerun", "last", "--failed", "--chunk", "0"), 2, "--chunk: 0 is not within 1 to 8192")
	b.want(b.tranche("run", "rerun", "last", "--failed", "--in-flight", "0"), 2, "--in-flight: 0 is not within 1 to 10000")
	b.want(b.tranche("run", "export", "last", "--state", "lost"), 2, "--state")
	b.want(b.tranche("run", "export", "last", "--key", "NOPE"), 7, `no item with key "NOPE"; see tranche run show`)
	b.want(b.tranche("dlq", "list", "--state", "lost"), 2, `--state must be one of "waiting",`)
	b.want(b.tranche("dlq", "drop", "--endpoint", "nope"), 7, `no dead letter is of endpoint "nope"`)
	b.want(b.tranche("run", "shwo"), 2, "shwo")
	b.want(b.tranche("run", "list", "--color"), 2, "--color")
	start(people, 2, `unknown flag --max-attempts, did you mean "--attempts"?; see: tranche run start`,
		"--max-attempts", "4")
	b.want(b.tranche("run", "cancel", "last"), 0, "1 item left", "cancelled")
	b.want(b.tranche("run", "watch", "last"), cli.ExitCancelled, "cancelled")
	const nowhere = "http://127.0.0.1:1"
	b.want(b.tranche("run", "list", "--url", nowhere), cli.ExitUnreachable, "start one with: tranche serve")
	b.want(b.tranche("run", "watch", "last", "--url", nowhere), cli.ExitUnreachable, "no tranche answers")
	b.want(b.tranche("run", "watch", "last", "--url", nowhere, "--max-wait", "100ms"), cli.ExitMaxWait,
		"waiting for the server", "has not answered within --max-wait 100ms", "tranche run watch last")
	b.want(b.tranche("run", "watch", "last", "--url", nowhere+","+b.url), cli.ExitCancelled, "cancelled")
	b.want(b.tranche("run", "list", "--ca", "no-such-file"), cli.ExitUsage, "no-such-file")
	b.want(b.tranche("run", "list", "--cert", "no-such-file"), cli.ExitUsage, "--key-file", "no-such-file")
	b.want(b.tranche("run", "list", "--url", "nonsense"), 2, "--url")
	b.want(b.tranche("doctor", "--database", "postgres://127.0.0.1:1/x"), 1, "127.0.0.1", "check that it runs")
	b.want(b.tranche("run", "cancel", "--all"), 0)
}

// Settings that cannot be, and an address that strangers can reach, are refused with the remedy, before anything is
// started.
func TestWrongSettingsOfServe(t *testing.T) {
	t.Parallel()
	config := func(text string) string {
		t.Helper()
		name := filepath.Join(t.TempDir(), "tranche.yaml")
		testenv.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	for name, c := range map[string]struct {
		code int
		text string
		env  []string
		args []string
	}{
		"another bind": {1, "add --auth on", nil, []string{"--listen", "0.0.0.0:0"}},
		"bind by env":  {1, "add --auth on", []string{"TRANCHE_LISTEN=0.0.0.0:0"}, nil},
		"bind by file": {1, "add --auth on", nil, []string{"--config", config("# ours\nlisten: 0.0.0.0:0\n")}},
		"unknown key": {
			2, "tranche.yaml:2:8: lisen: there is no such setting; the settings are ", nil, []string{"--config",
				config("shutdown-timeout: 1s\nlisen: x\n")},
		},
		"doubled key": {2, "tranche.yaml:2:1: shutdown-timeout appears twice", nil,
			[]string{"--config", config("shutdown-timeout: 1s\nshutdown-timeout: 2s\n")}},
		"key with a list": {2, "tranche.yaml:1:9: listen: want one value; this is a list", nil,
			[]string{"--config", config("listen: [a]\n")}},
		"two spellings": {
			2, "tranche.yaml:2:11: data_dir: data-dir appears twice", nil,
			[]string{"--config", config("data-dir: a\ndata_dir: b\n")},
		},
		"password in it": {
			2, "tranche.yaml:1:11: database: want one value; this is a list", nil,
			[]string{"--config", config("database: [postgres://u:canary@h/x]\n")},
		},
		"no file": {2, "no-such.yaml", nil, []string{"--config", "no-such.yaml"}},
		"file below env": {
			1, "192.0.2.9", []string{"TRANCHE_LISTEN=192.0.2.9:1"}, []string{"--config", config("listen: 0.0.0.0:0\n")},
		},
		"env below flag": {1, "192.0.2.7", []string{"TRANCHE_LISTEN=192.0.2.9:1"}, []string{"--listen", "192.0.2.7:1"}},
		"grace":          {2, "--shutdown-timeout", nil, []string{"--shutdown-timeout", "0s"}},
		"no link": {2, `--link logs: invalid URL "https://x/{item}"`, nil,
			[]string{"--link", "logs=https://x/{item}"}},
		"no archive":   {2, "--archive: want s3://BUCKET/FOLDER", nil, []string{"--archive", "s3://u:canary@b/f"}},
		"ratio":        {2, "--trace-ratio must be 0 to 1, got 2", nil, []string{"--trace-ratio", "2"}},
		"no ratio":     {2, "--trace-ratio must be 0 to 1, got NaN", nil, []string{"--trace-ratio", "NaN"}},
		"traces to":    {2, "--trace-otlp: ", nil, []string{"--trace-otlp", "collector:4317"}},
		"no TLS":       {1, "--tls-cert", nil, []string{"--listen", "0.0.0.0:0", "--auth", "on"}},
		"a proxy only": {1, "--auth on", nil, []string{"--listen", "0.0.0.0:0", "--trusted-proxies", "10.0.0.0/8"}},
		"no key":       {1, "--tls-key", nil, []string{"--auth", "on", "--tls-cert", "x"}},
		"logins off":   {1, "--auth on", nil, []string{"--oidc-issuer", "https://id.example"}},
		"delete alone": {1, "use delete,retention", nil, []string{"--auth", "on", "--four-eyes", "delete"}},
		"no way back":  {1, "--public-url", nil, []string{"--auth", "on", "--oidc-issuer", "https://id.example"}},
		"no such role": {
			1, "viewer, operator and admin", nil, []string{"--auth", "on", "--oidc-issuer", "https://id.example",
				"--public-url", "https://t.example", "--oidc-client-id", "t", "--oidc-roles", "staff=king"},
		},
		"a subject twice": {1, "each SUBJECT once", nil, []string{"--auth", "on", "--tls-cert", "x", "--client-ca", "x",
			"--client-roles", "CN=ops=admin;CN=ops=viewer"}},
		"no such database": {
			1, "127.0.0.1:1", nil,
			[]string{"--listen", "127.0.0.1:0", "--database-wait", "0s", "--database", "postgres://u:canary@127.0.0.1:1/x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			args := append([]string{"serve", "--data-dir", dir}, c.args...)
			r := runProgram(t, c.env, "", args...)
			if r.code != c.code || !strings.Contains(r.err, c.text) || strings.Contains(r.err, "canary") {
				t.Errorf("exit code %d, %q; want %d, %q", r.code, r.err, c.code, c.text)
			}
			_, err := os.Stat(dir)
			testenv.Fails(t, err, "it left a data directory")
		})
	}
}

// With nothing given, serve brings its own PostgreSQL and NATS, stops in good order, and finds its data again.
func TestServeAlone(t *testing.T) {
	t.Parallel()
	data := testenv.Dir(t)
	for life := range 2 {
		serve := launch(t, true, "--data-dir", data, "--nats-listen", "127.0.0.1:0")
		where := serve.where
		b := &bench{T: t, url: where["api"]}
		if life == 0 {
			b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--name", "kept"), 0, "3 items",
				"see "+where["api"]+"/runs/")
			b.want(b.tranche("psql", "--data-dir", data, "--show-url"), 0, "postgres://")
			b.want(runProgram(t, nil, "", "run", "start", "--help"), 0, "Examples:", "Settings of every step:")
			taken := runProgram(t, nil, "", "serve", "--data-dir", t.TempDir(),
				"--listen", strings.TrimPrefix(where["api"], "http://"))
			b.want(taken, 1, "--listen", "taken")
		}
		b.want(b.tranche("run", "show", "kept"), 0, "3 to go")
		testenv.MustSame(t, serve.stop(), nil, "life %d: serve ended: %s", life, serve.log.String())
	}
}

// Two servers on one database split the work, and a watch does not end with its terminal's Ctrl-C taking the run along.
func TestWatchEndsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.serve()
	var rows strings.Builder
	rows.WriteString("id,name\n")
	for i := range 2000 {
		fmt.Fprintf(&rows, "%d,n%d\n", i, i)
	}
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "echo", "--items", "-"), 0, "2,000 items")

	watch := command(t, []string{"TRANCHE_URL=" + b.url}, "run", "watch", "last")
	said := &signaled{text: "in flight", seen: make(chan struct{})}
	watch.Stdout, watch.Stderr = said, said
	testenv.NoError(t, watch.Start())
	select {
	case <-said.seen:
	case <-time.After(patienceInTests):
		t.Fatal("the watch says nothing")
	}
	testenv.NoError(t, watch.Process.Signal(os.Interrupt))
	if err := watch.Wait(); err == nil || watch.ProcessState.ExitCode() != cli.ExitInterrupted {
		t.Errorf("the watch ended with %v; want exit code 130", err)
	}
	testenv.Has(t, said.String(), "the run continues on the server; continue with: tranche run watch ", "the watch said")
	b.echo(nil)
	b.want(b.tranche("run", "watch", "last"), 0, "2,000 of 2,000 items done")
	b.want(b.tranche("doctor"), 0, "hold")
}

// signaled closes seen when a text has been written.
type signaled struct {
	testenv.Log
	text string
	once sync.Once
	seen chan struct{}
}

func (s *signaled) Write(p []byte) (int, error) {
	n, err := s.Log.Write(p)
	if strings.Contains(s.String(), s.text) {
		s.once.Do(func() { close(s.seen) })
	}
	return n, err
}
