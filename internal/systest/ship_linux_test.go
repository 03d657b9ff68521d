package systest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// command is a program that is started in the repository.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = root
	return cmd
}

// output runs it, and returns what it said on standard output.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	testenv.MustSame(t, err, nil, "%s\n%s%s", strings.Join(cmd.Args, " "), out, said.String())
	return string(out)
}

// tool is a program of Go's, built into .tools.
func tool(t *testing.T, module string) string {
	t.Helper()
	return strings.TrimSpace(output(t, command(t.Context(), "scripts/tool.sh", module)))
}

// installed finds a program of the machine's.
func installed(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	testenv.MustSame(t, err, nil, "install it: scripts/deps.sh ship prometheus")
	return path
}

// absolute is a file of the repository for programs that start elsewhere.
func absolute(t *testing.T, name string) string {
	t.Helper()
	return testenv.Must(filepath.Abs(filepath.Join(root, name)))(t)
}

func read(t *testing.T, name string) string {
	t.Helper()
	text := testenv.Must(os.ReadFile(name))(t)
	return string(text)
}
