package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testenv"
)

// world is a database and a NATS server, nodes of the real binary, and services.
type world struct {
	binary, database, nats, files string
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{binary: filepath.Join(t.TempDir(), "tranche"), database: testenv.Database(t),
		nats: testenv.NATS(t).URL(), files: t.TempDir()}
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", w.binary, "./cmd/tranche")
	cmd.Dir = filepath.Join("..", "..", "..")
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return w
}

// said is what a process writes, for any goroutine.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// node is a tranche serve.
type node struct {
	cmd     *exec.Cmd
	log     *said
	url     string
	metrics string // host:port
}

// serve starts a node, which has its metrics at an address.
func (w *world) serve(t *testing.T, metrics string) *node {
	t.Helper()
	n := &node{log: &said{}}
	n.cmd = exec.Command(w.binary, "--json", "serve", "--database", w.database, "--nats", w.nats, "--listen",
		"127.0.0.1:0", "--metrics-listen", metrics, "--data-dir", t.TempDir(), "--log-level", "warn",
		"--schedule-files", w.files)
	n.cmd.Env, n.cmd.Stderr = plainEnv(), n.log
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

func plainEnv() (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TRANCHE_") && !strings.HasPrefix(v, "NATS_") {
			env = append(env, v)
		}
	}
	return env
}

// command runs a command of tranche that has to succeed.
func (w *world) command(t *testing.T, n *node, stdin string, args ...string) {
	t.Helper()
	cmd := exec.Command(w.binary, append([]string{"--url", n.url}, args...)...)
	cmd.Stdin, cmd.Env = strings.NewReader(stdin), plainEnv()
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
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- svc.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

// items is a CSV of n accounts.
func items(n int) string {
	var csv strings.Builder
	csv.WriteString("id\n")
	for i := range n {
		csv.WriteString("C" + strconv.Itoa(i) + "\n")
	}
	return csv.String()
}
