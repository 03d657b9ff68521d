package systest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/tools/faultyservice"
	"github.com/tranchehq/tranche/workqueue"
)

const root = "../.."

// office is a world in which an operator works with the real binary.
type office struct {
	*world
	binary string
	ledger *faultyservice.Ledger
}

// newOffice has a service that misbehaves in its world, and no server yet.
func newOffice(t *testing.T, binary string, cfg faultyservice.Config) *office {
	t.Helper()
	o := &office{world: setup(t), binary: binary, ledger: &faultyservice.Ledger{}}
	cfg.Endpoint, cfg.Ledger = "statement", o.ledger
	svc := testenv.Must(faultyservice.New(testenv.Conn(t, o.ns), cfg))(t)
	testenv.Keep(t, t.Errorf, "the service", svc.Run)
	return o
}

type server struct {
	*process
	url     string // empty: it ended
	metrics string // host:port, if it has any
}

// launch starts a server, and returns when it is ready, or ended. It is killed at the end of the test at the
// latest.
func launch(t testing.TB, binary, database, nats string, env []string, flags ...string) *server {
	t.Helper()
	p := &process{ended: make(chan struct{})}
	args := []string{"--json", "serve", "--database", database, "--nats", nats, "--listen", "127.0.0.1:0",
		"--data-dir", t.TempDir(), "--log-level", "warn"}
	p.cmd = exec.Command(binary, append(args, flags...)...)
	p.cmd.Env, p.cmd.Stderr = append(testenv.PlainEnv(), env...), &p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out := testenv.Must(p.cmd.StdoutPipe())(t)
	testenv.NoError(t, p.cmd.Start())
	var where struct{ API, Metrics string }
	err := json.NewDecoder(out).Decode(&where)
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
		if t.Failed() {
			t.Logf("serve said:\n%.20000s", p.said.String())
		}
	})
	if err != nil {
		<-p.ended
	}
	return &server{p, where.API, strings.TrimSuffix(strings.TrimPrefix(where.Metrics, "http://"), "/metrics")}
}

// up is launch of a server that has to get ready.
func up(t testing.TB, binary, database, nats string, env []string, flags ...string) *server {
	t.Helper()
	s := launch(t, binary, database, nats, env, flags...)
	if s.url == "" {
		t.Fatalf("serve did not start: %s", s.said.String())
	}
	return s
}

func (s *server) end(t *testing.T) {
	t.Helper()
	testenv.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	if <-s.ended; s.err != nil {
		t.Errorf("serve ended with %v: %s", s.err, s.said.String())
	}
}

func (o *office) serve(flags ...string) *server {
	o.Helper()
	return up(o, o.binary, o.url, o.ns.URL(), nil, flags...)
}

// reply is what a command said, and how it ended.
type reply struct {
	code     int
	out, err string
}

// run runs a command of tranche to its end, for any goroutine. Its error means that it could not be run at all.
func run(binary, stdin string, args ...string) (reply, error) {
	cmd := exec.Command(binary, args...)
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = strings.NewReader(stdin), &out, &said, testenv.PlainEnv()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return reply{}, err
	}
	return reply{cmd.ProcessState.ExitCode(), out.String(), said.String()}, nil
}

func must(t testing.TB, binary, stdin string, args ...string) string {
	t.Helper()
	r := testenv.Must(run(binary, stdin, args...))(t)
	testenv.MustSame(t, r.code, 0, "tranche %s: exit code\n%s%s", strings.Join(args, " "), r.out, r.err)
	return r.out
}

func (o *office) command(s *server, stdin string, args ...string) reply {
	o.Helper()
	return testenv.Must(run(o.binary, stdin, append([]string{"--url", s.url}, args...)...))(o)
}

// begun starts a command. The returned function waits for its end.
func (o *office) begun(s *server, args ...string) (said func() reply) {
	return testenv.Begin(o, func() (reply, error) {
		return run(o.binary, "", append([]string{"--url", s.url}, args...)...)
	})
}

func (o *office) must(s *server, args ...string) {
	o.Helper()
	must(o, o.binary, "", append([]string{"--url", s.url}, args...)...)
}

func (o *office) begin(s *server, n int, flags ...string) (run workqueue.RunID) {
	o.Helper()
	args := append([]string{"--json", "run", "start", "--endpoint", "statement", "--items", "-"}, flags...)
	r := o.command(s, testenv.Accounts(n), args...)
	var started struct {
		Run workqueue.RunID `json:"run"`
	}
	testenv.NoError(o, json.Unmarshal([]byte(r.out), &started))
	testenv.MustSame(o, r.code, 0, "start: exit code\n%s%s", r.out, r.err)
	return started.Run
}

func (o *office) kill(s *server) {
	o.Helper()
	o.signal(s.process, syscall.SIGKILL)
	o.wantKilled(s.process)
}

// serveAccounts answers until the test ends; the item whose id is bad fails.
func serveAccounts(t *testing.T, nc *nats.Conn, bad string) {
	t.Helper()
	svc, err := endpoints.New(nc, endpoints.Config{Name: "statement", Version: "1.0.0"})
	if err == nil {
		err = endpoints.HandleEach(svc, "statement", func(_ context.Context, in account) (account, error) {
			if bad == in.ID {
				return in, endpoints.Fail("refused", "no such account")
			}
			return in, nil
		})
	}
	testenv.NoError(t, err)
	testenv.Keep(t, t.Errorf, "the service", svc.Run)
}

// wantRun has a server run items to the end, and checks its exit code and how many it says are done.
func wantRun(t *testing.T, binary string, s *server, code int, done string) {
	t.Helper()
	r, err := run(binary, testenv.Accounts(200), "--url", s.url, "run", "start", "--endpoint", "statement", "--items", "-",
		"--wait", "--max-wait", limit.String())
	if err != nil || r.code != code || !strings.Contains(r.out+r.err, done) {
		t.Fatalf("the run: exit code %d, %v\n%s%s", r.code, err, r.out, r.err)
	}
}

func until(t testing.TB, what string, met func() bool) {
	t.Helper()
	testenv.Until(t, limit, what, met)
}

// untilSQL waits until the answer to a question is yes.
func untilSQL(t *testing.T, pool *pgxpool.Pool, what, sql string) {
	t.Helper()
	until(t, what, func() (is bool) {
		testenv.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&is))
		return is
	})
}
