package embedded

import (
	"os/exec"
	"syscall"
)

// OwnGroup does nothing: Windows has no process groups that can be signalled.
func OwnGroup(*exec.Cmd) {}

// SignalGroup kills the command: Windows cannot ask it to end.
func SignalGroup(cmd *exec.Cmd, _ syscall.Signal) {
	_ = cmd.Process.Kill() // it may have ended, which is fine
}
