//go:build unix

package fault

import (
	"os"
	"syscall"
)

func (p *point) fire() {
	signal := syscall.SIGKILL
	if p.stop {
		signal = syscall.SIGSTOP
	}
	_ = syscall.Kill(os.Getpid(), signal) // nothing can be done if a process may not signal itself
}
