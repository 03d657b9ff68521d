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

// program is the built command, shared by the tests of a binary: linking takes seconds.
var program struct {
	once sync.Once
	dir  string
	err  error
}

// Program builds the command once and returns its path. The package's TestMain must call [Main].
func Program(t testing.TB, root string) string {
	t.Helper()
	program.once.Do(func() {
		program.dir, program.err = os.MkdirTemp("", "tranche-program-") //nolint:usetesting // it outlives the test
		if program.err != nil {
			return
		}
		if program.err = os.Chmod(program.dir, 0o755); program.err != nil { // for a test that runs it as another user
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

// GoFlags returns the environment's GOFLAGS plus more. Without its flags, go would recompile everything.
func GoFlags(more string) string { return "GOFLAGS=" + os.Getenv("GOFLAGS") + " " + more }

// PlainEnv returns the environment without settings for Tranche and NATS.
func PlainEnv() (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TRANCHE_") && !strings.HasPrefix(v, "NATS_") {
			env = append(env, v)
		}
	}
	return env
}

// Log is a process's output. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Accounts returns a CSV of n items with the keys C0, C1, ….
func Accounts(n int) string {
	var csv strings.Builder
	csv.WriteString("id\n")
	for i := range n {
		fmt.Fprintf(&csv, "C%d\n", i)
	}
	return csv.String()
}
