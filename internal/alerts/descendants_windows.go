package alerts

import "os/exec"

// withDescendants kills the program alone: what it has started has to end by itself on Windows.
func withDescendants(cmd *exec.Cmd) {
	cmd.Cancel = func() error { return cmd.Process.Kill() }
}
