//go:build unix

package embedded

import (
	"os/exec"
	"syscall"
)

// OwnGroup makes a command the leader of a process group. Call it before the command is started.
func OwnGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// SignalGroup signals a command of [OwnGroup] and its descendants.
func SignalGroup(cmd *exec.Cmd, s syscall.Signal) {
	_ = syscall.Kill(-cmd.Process.Pid, s) // it may have ended, which is fine
}
