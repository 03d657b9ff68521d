// Package child starts programs that end with this one, where the kernel sees to that.
package child

import (
	"os/exec"
	"runtime"
)

// Start starts a command, and returns when it runs or cannot. Once it has ended, ended is told how, in a goroutine of
// its own.
func Start(cmd *exec.Cmd, ended func(error)) error {
	begun := make(chan error)
	go func() {
		// Linux sends the parent's death signal when the thread that started the child ends, so it must not.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		begun <- err
		if err == nil {
			ended(cmd.Wait())
		}
	}()
	return <-begun
}
