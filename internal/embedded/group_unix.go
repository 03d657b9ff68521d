//go:build unix

package embedded

import (
	"os/exec"
	"syscall"
)

// ownGroup makes a command that starts then the leader of a process group.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// signalGroup signals a command and its descendants.
func signalGroup(cmd *exec.Cmd, s syscall.Signal) {
	_ = syscall.Kill(-cmd.Process.Pid, s) // it may have ended, which is fine
}
