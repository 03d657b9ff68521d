package conformance

import (
	"os/exec"
	"syscall"
)

// group leaves the command as it is: Windows has no groups of processes that are signalled together.
func group(*exec.Cmd) {}

// send ends the command. Windows has no way to ask it to end.
func send(cmd *exec.Cmd, _ syscall.Signal) {
	_ = cmd.Process.Kill() // it may have ended, which is as good
}
