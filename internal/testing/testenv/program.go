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

// Program builds the real binary. It is there until the test and its subtests have ended. root is that of the
// repository.
func Program(t testing.TB, root string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tranche")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "./cmd/tranche")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), GoFlags("-buildvcs=false"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return path
}

// GoFlags is the environment's GOFLAGS with more. Without those that the tests were compiled with, the go command would
// compile all there is anew.
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
