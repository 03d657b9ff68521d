package pooler

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// node is a tranche serve.
type node struct {
	cmd *exec.Cmd
	log *testenv.Log
	url string
	err error // of its end
}

// start starts a serve and waits until it is ready, or has ended: then url is empty.
func start(t *testing.T, binary, database, nats string, flags ...string) *node {
	t.Helper()
	n := &node{log: &testenv.Log{}}
	n.cmd = exec.Command(binary, append([]string{"--json", "serve", "--database", database, "--nats", nats,
		"--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--log-level", "warn"}, flags...)...)
	n.cmd.Env, n.cmd.Stderr = testenv.PlainEnv(), n.log
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

// command runs a command of tranche to its end.
func command(t *testing.T, binary, stdin string, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Stdin, cmd.Env = strings.NewReader(stdin), testenv.PlainEnv()
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
	testenv.Keep(t, t.Errorf, "the service", svc.Run)
}

// wantRun has a node run items to the end, of which one fails.
func wantRun(t *testing.T, binary string, n *node) {
	t.Helper()
	out, code := command(t, binary, testenv.Accounts(200), "--url", n.url, "run", "start", "--endpoint", "statement",
		"--items", "-", "--wait")
	if code != 3 || !strings.Contains(out, "199") {
		t.Fatalf("the run: exit code %d\n%s", code, out)
	}
}
