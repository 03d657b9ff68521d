// Package child starts programs that end with this one. Call DieWithParent on the command's SysProcAttr, then Start,
// which keeps the thread that the kernel watches. Only Linux can do it; elsewhere children of a program that is killed
// live on.
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
