package embedded

import (
	"os/exec"
	"syscall"
)

// ownGroup does nothing: Windows has no process groups that can be signalled.
func ownGroup(*exec.Cmd) {}

// signalGroup kills the command: Windows cannot ask it to end.
func signalGroup(cmd *exec.Cmd, _ syscall.Signal) {
	_ = cmd.Process.Kill() // it may have ended, which is fine
}
