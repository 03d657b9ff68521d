package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// program is the real binary, which the tests of a binary share: to link it takes seconds.
var program struct {
	once sync.Once
	dir  string
	err  error
}

// Program returns the path of the real binary, which is built once, and is there until the last test has ended. root is
// that of the repository; the package's TestMain must be that of [Main].
func Program(t testing.TB, root string) string {
	t.Helper()
	program.once.Do(func() {
		program.dir, program.err = os.MkdirTemp("", "tranche-program-") //nolint:usetesting // it outlives the test
		if program.err != nil {
			return
		}
		if program.err = os.Chmod(program.dir, 0o755); program.err != nil { // another user may run it
			return
		}
		cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(program.dir, "tranche"), "./cmd/tranche")
		cmd.Dir, cmd.Env = root, append(os.Environ(), GoFlags("-buildvcs=false"))
		if out, err := cmd.CombinedOutput(); err != nil {
			program.err = fmt.Errorf("build the program: %w\n%s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return filepath.Join(program.dir, "tranche")
}

// GoFlags is the environment's GOFLAGS with more. Without those that the tests were compiled with, the go command would
// compile all there is again.
func GoFlags(more string) string { return "GOFLAGS=" + os.Getenv("GOFLAGS") + " " + more }

// PlainEnv is the environment without the settings that a person may have made.
func PlainEnv() (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TRANCHE_") && !strings.HasPrefix(v, "NATS_") {
			env = append(env, v)
		}
	}
	return env
}

// Log is what a process writes, for any goroutine.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write takes it.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all of it.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Accounts is a CSV of n items, whose keys are C0, C1 and so on.
func Accounts(n int) string {
	var csv strings.Builder
	csv.WriteString("id\n")
	for i := range n {
		fmt.Fprintf(&csv, "C%d\n", i)
	}
	return csv.String()
}
