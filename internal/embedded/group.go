package embedded

import (
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Group is a command in its own process group: Ctrl-C stays with this process, which ends it in order, with the
// command's children.
type Group struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// StartGroup starts a command. Its WaitDelay limits the wait for children that hold its output.
func StartGroup(cmd *exec.Cmd) (*Group, error) {
	ownGroup(cmd)
	g := &Group{cmd: cmd, done: make(chan struct{})}
	return g, StartChild(cmd, func(err error) { g.err = err; close(g.done) })
}

// Done is closed when the command ends.
func (g *Group) Done() <-chan struct{} { return g.done }

// Err returns how the command ended, after [Group.Done].
func (g *Group) Err() error { return g.err }

// Terminate asks the group to end.
func (g *Group) Terminate() { signalGroup(g.cmd, syscall.SIGTERM) }

// Kill ends the group by force.
func (g *Group) Kill() { signalGroup(g.cmd, syscall.SIGKILL) }

// Stop ends the group, by force after the grace, and reports whether it ended before that.
func (g *Group) Stop(grace time.Duration) (inTime bool) {
	g.Terminate()
	select {
	case <-g.done:
		return true
	case <-time.After(grace):
	}
	g.Kill()
	<-g.done
	return false
}

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
