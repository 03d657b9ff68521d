//go:build unix

package alerts

import (
	"os/exec"
	"syscall"
)

// withDescendants makes a cancelled program die with its descendants.
func withDescendants(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
