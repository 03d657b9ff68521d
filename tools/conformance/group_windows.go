package conformance

import (
	"os/exec"
	"syscall"
)

// group does nothing: Windows has no process groups that can be signalled.
func group(*exec.Cmd) {}

// send kills the command: Windows cannot ask it to end.
func send(cmd *exec.Cmd, _ syscall.Signal) {
	_ = cmd.Process.Kill() // it may have ended, which is fine
}
