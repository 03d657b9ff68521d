//go:build unix

package conformance

import (
	"os/exec"
	"syscall"
)

// group gives the command a process group of its own.
func group(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// send reaches the whole group.
func send(cmd *exec.Cmd, s syscall.Signal) {
	_ = syscall.Kill(-cmd.Process.Pid, s) // it may have ended, which is as good
}
