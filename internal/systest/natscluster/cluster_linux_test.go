package natscluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tranchehq/tranche/internal/testenv"
)

// One cluster serves all, one after the other: it takes seconds until three servers are one, and minutes of the machine
// to have more than one at a time.
func TestCluster(t *testing.T) {
	binary := buildProgram(t)
	script := testenv.NodeService(t, filepath.Join("..", "..", "..", "examples", "node"))
	cluster := testenv.StartNATSProcesses(t)
	t.Run("keeps the pace", func(t *testing.T) { keepsThePace(t, cluster, binary, script) })
	t.Run("survives", func(t *testing.T) { faults(t, cluster, binary, script) })
}

// buildProgram builds the real binary.
func buildProgram(t *testing.T) string {
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
