package embedded

import (
	"os/exec"
	"runtime"
)

// StartChild starts a command, and returns when it runs or cannot. When it ends, ended is called with how, in a
// goroutine of its own. Call [DieWithParent] on its SysProcAttr first for a program that ends with this one, which only
// Linux can do.
func StartChild(cmd *exec.Cmd, ended func(error)) error {
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
