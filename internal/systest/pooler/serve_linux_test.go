package pooler

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

func TestMain(m *testing.M) { testenv.Main(m) }

// program builds the real binary.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tranche")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "./cmd/tranche")
	cmd.Dir = filepath.Join("..", "..", "..")
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return path
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
	cmd *exec.Cmd
	log *said
	url string
	err error // of its end
}

// start starts a serve and waits until it is ready, or has ended: then url is empty.
func start(t *testing.T, binary, database, nats string, flags ...string) *node {
	t.Helper()
	n := &node{log: &said{}}
	n.cmd = exec.Command(binary, append([]string{"--json", "serve", "--database", database, "--nats", nats,
		"--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--log-level", "warn"}, flags...)...)
	n.cmd.Env, n.cmd.Stderr = plainEnv(), n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	where := map[string]string{}
	if json.NewDecoder(out).Decode(&where) != nil {
		n.err = n.cmd.Wait()
		return n
	}
	n.url = where["api"]
	t.Cleanup(func() { _ = n.cmd.Process.Kill() }) // it has ended, unless the test failed
	return n
}

// end tells a node to end, and waits.
func (n *node) end(t *testing.T) {
	t.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Wait(); err != nil {
		t.Errorf("serve ended with %v: %s", err, n.log)
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

// command runs a command of tranche to its end.
func command(t *testing.T, binary, stdin string, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Stdin, cmd.Env = strings.NewReader(stdin), plainEnv()
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// must is command for one that has to succeed.
func must(t *testing.T, binary, stdin string, args ...string) string {
	t.Helper()
	out, code := command(t, binary, stdin, args...)
	if code != 0 {
		t.Fatalf("tranche %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

type account struct {
	ID string `json:"id"`
}

// service answers at an endpoint until the test ends, and refuses one account.
func service(t *testing.T, nats string) {
	t.Helper()
	svc, err := endpoints.New(testenv.Dial(t, nats), endpoints.Config{Name: "statement", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	err = endpoints.HandleEach(svc, "statement", func(_ context.Context, in account) (account, error) {
		if in.ID == "C7" {
			return in, endpoints.Fail("refused", "no such account")
		}
		return in, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	end := testenv.Begin(t, func() (struct{}, error) { return struct{}{}, svc.Run(ctx) })
	t.Cleanup(func() { cancel(); end() })
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

// wantRun has a node run items to the end, of which one fails.
func wantRun(t *testing.T, binary string, n *node) {
	t.Helper()
	out, code := command(t, binary, items(200), "--url", n.url, "run", "start", "--endpoint", "statement", "--items", "-",
		"--wait")
	if code != 3 || !strings.Contains(out, "199") {
		t.Fatalf("the run: exit code %d\n%s", code, out)
	}
}
