package systest

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/tools/faultyservice"
	"github.com/tranchehq/tranche/workqueue"
)

// office is a world in which an operator works with the real binary.
type office struct {
	*world
	binary string
	ledger *faultyservice.Ledger
}

// newOffice has a service that misbehaves in its world, and no server yet.
func newOffice(t *testing.T, binary string, cfg faultyservice.Config) *office {
	t.Helper()
	o := &office{world: setup(t), binary: binary, ledger: faultyservice.NewLedger(nil)}
	cfg.Endpoint, cfg.Ledger = "statement", o.ledger
	svc, err := faultyservice.New(testenv.Conn(t, o.ns), cfg)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Keep(t, t.Errorf, "the service", svc.Run)
	return o
}

// server is a tranche serve.
type server struct {
	*process
	url string
}

// serve starts a server and returns when it is ready. It is killed at the end of the test at the latest.
func (o *office) serve(flags ...string) *server {
	o.Helper()
	p := &process{ended: make(chan struct{})}
	args := []string{"--json", "serve", "--database", o.url, "--nats", o.ns.URL(), "--listen", "127.0.0.1:0",
		"--data-dir", o.TempDir(), "--log-level", "warn"}
	p.cmd = exec.Command(o.binary, append(args, flags...)...)
	p.cmd.Env, p.cmd.Stderr = testenv.PlainEnv(), &p.said
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		o.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		o.Fatal(err)
	}
	where := map[string]string{}
	err = json.NewDecoder(out).Decode(&where)
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	o.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
		if o.Failed() {
			o.Logf("serve said:\n%.20000s", p.said.String())
		}
	})
	if err != nil {
		o.Fatalf("serve did not start: %v: %s", err, p.said.String())
	}
	return &server{p, where["api"]}
}

// reply is what a command said, and how it ended.
type reply struct {
	code     int
	out, err string
}

// command runs a command of tranche to its end.
func (o *office) command(s *server, stdin string, args ...string) reply {
	o.Helper()
	r, err := o.try(s, stdin, args...)
	if err != nil {
		o.Fatal(err)
	}
	return r
}

// try is command for any goroutine. Its error means that the command could not be run at all.
func (o *office) try(s *server, stdin string, args ...string) (reply, error) {
	cmd := exec.Command(o.binary, append([]string{"--url", s.url}, args...)...)
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = strings.NewReader(stdin), &out, &said, testenv.PlainEnv()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return reply{}, err
	}
	return reply{cmd.ProcessState.ExitCode(), out.String(), said.String()}, nil
}

// begun starts a command. The returned function waits for its end.
func (o *office) begun(s *server, args ...string) (said func() reply) {
	return testenv.Begin(o, func() (reply, error) { return o.try(s, "", args...) })
}

// must runs a command that has to succeed.
func (o *office) must(s *server, args ...string) string {
	o.Helper()
	r := o.command(s, "", args...)
	if r.code != 0 {
		o.Fatalf("tranche %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	}
	return r.out
}

// begin starts a run of n items.
func (o *office) begin(s *server, n int, flags ...string) (run workqueue.RunID) {
	o.Helper()
	args := append([]string{"--json", "run", "start", "--endpoint", "statement", "--items", "-"}, flags...)
	r := o.command(s, testenv.Accounts(n), args...)
	var started struct {
		Run workqueue.RunID `json:"run"`
	}
	if err := json.Unmarshal([]byte(r.out), &started); err != nil || r.code != 0 {
		o.Fatalf("start: exit code %d: %v\n%s%s", r.code, err, r.out, r.err)
	}
	return started.Run
}

// kill ends a server as a crash does.
func (o *office) kill(s *server) {
	o.Helper()
	o.signal(s.process, syscall.SIGKILL)
	o.wantKilled(s.process)
}
