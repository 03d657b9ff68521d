package alerts

import "os/exec"

// withDescendants kills only the program: on Windows its descendants must end on their own.
func withDescendants(cmd *exec.Cmd) {
	cmd.Cancel = func() error { return cmd.Process.Kill() }
}
