package embedded

import (
	"os/exec"
	"runtime"
)

// StartChild starts a command and returns when it runs or cannot. At its end, ended is called in another goroutine.
// To end the child with this process, on Linux only, call [DieWithParent] on its SysProcAttr first.
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
