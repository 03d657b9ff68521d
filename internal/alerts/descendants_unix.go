//go:build unix

package alerts

import (
	"os/exec"
	"syscall"
)

// withDescendants has a cancelled program killed with all that it has started.
func withDescendants(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
