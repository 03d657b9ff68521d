package metrics

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// world is a database and a NATS server, nodes of the real binary, and services.
type world struct {
	binary, database, nats, files string
}

func setup(t *testing.T) *world {
	t.Helper()
	return &world{binary: testenv.Program(t, filepath.Join("..", "..", "..")), database: testenv.Database(t),
		nats: testenv.NATS(t).URL(), files: t.TempDir()}
}

// node is a tranche serve.
type node struct {
	cmd     *exec.Cmd
	log     *testenv.Log
	url     string
	metrics string // host:port
}

// serve starts a node, which has its metrics at an address.
func (w *world) serve(t *testing.T, metrics string) *node {
	t.Helper()
	n := &node{log: &testenv.Log{}}
	n.cmd = exec.Command(w.binary, "--json", "serve", "--database", w.database, "--nats", w.nats, "--listen",
		"127.0.0.1:0", "--metrics-listen", metrics, "--data-dir", t.TempDir(), "--log-level", "warn",
		"--schedule-files", w.files)
	n.cmd.Env, n.cmd.Stderr = testenv.PlainEnv(), n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.kill()
		if t.Failed() {
			t.Logf("serve said:\n%.10000s", n.log)
		}
	})
	where := map[string]string{}
	if err := json.NewDecoder(out).Decode(&where); err != nil {
		t.Fatalf("serve did not start: %v: %s", err, n.log)
	}
	n.url = where["api"]
	n.metrics = strings.TrimSuffix(strings.TrimPrefix(where["metrics"], "http://"), "/metrics")
	return n
}

// kill ends a node without a word.
func (n *node) kill() {
	if n.cmd.ProcessState == nil {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait() // it was killed
	}
}

// command runs a command of tranche that has to succeed.
func (w *world) command(t *testing.T, n *node, stdin string, args ...string) {
	t.Helper()
	cmd := exec.Command(w.binary, append([]string{"--url", n.url}, args...)...)
	cmd.Stdin, cmd.Env = strings.NewReader(stdin), testenv.PlainEnv()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("tranche %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

type account struct {
	ID string `json:"id"`
}

// service answers at an endpoint until end is called, or fails all items.
func (w *world) service(t *testing.T, endpoint string, fails bool) (end func()) {
	t.Helper()
	nc := testenv.Dial(t, w.nats)
	svc, err := endpoints.New(nc, endpoints.Config{Name: endpoint, Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	err = endpoints.HandleEach(svc, endpoint, func(_ context.Context, in account) (account, error) {
		if fails {
			return in, endpoints.Fail("refused", "no such account")
		}
		return in, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return testenv.Keep(t, t.Errorf, "the service", svc.Run)
}
