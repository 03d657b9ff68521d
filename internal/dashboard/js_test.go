package dashboard_test

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestScripts runs the tests of the dashboard's scripts that need no browser: how items are laid out, kept, summed up
// and drawn, and how what the server sends is read. They are in jstest, for Node's own test runner.
func TestScripts(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("node is missing, which the dashboard's scripts are tested with; install it: make deps")
	}
	files, err := filepath.Glob("jstest/*.test.mjs")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests of scripts in jstest: %v", err)
	}
	out, err := exec.CommandContext(t.Context(), node, append([]string{"--test"}, files...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
