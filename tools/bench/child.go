package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tranchehq/tranche/internal/embedded"
)

// maxSaid is how much of what a child wrote an error shows.
const maxSaid = 4 << 10

// child is a process that we started. It is in a group of its own, so that a Ctrl-C at the terminal leaves the order in
// which children end to us, and on Linux it dies with us.
type child struct {
	name   string
	cmd    *exec.Cmd
	said   lastBytes
	exited chan struct{} // closed when it has ended, with err set
	err    error
}

// startChild starts a program. Its output goes to out, what it says on standard error is kept for errors.
func startChild(name string, out io.Writer, program string, args ...string) (*child, error) {
	c := &child{name: name, cmd: exec.Command(program, args...), exited: make(chan struct{})}
	c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = plainEnv(os.Environ()), out, &c.said
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	embedded.DieWithParent(c.cmd.SysProcAttr, syscall.SIGKILL)
	err := embedded.StartChild(c.cmd, func(err error) {
		c.err = err
		close(c.exited)
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

// plainEnv leaves out the settings of Tranche and NATS that a person may have set: they would change what is measured.
func plainEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		return strings.HasPrefix(v, "TRANCHE_") || strings.HasPrefix(v, "NATS_")
	})
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// ended says why the child, which should be running, is not.
func (c *child) ended() error {
	return fmt.Errorf("%s ended: %w; it said:\n%s", c.name, orExit(c.err), c.said.String())
}

func orExit(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// stop asks the child to end, and kills it when it does not.
func (c *child) stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended, which is as good
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-c.exited:
		return nil
	case <-timer.C:
	}
	_ = c.cmd.Process.Kill() // as above
	<-c.exited
	return fmt.Errorf("stop %s (pid %d): it did not end within %s and was killed", c.name, c.pid(), stopTimeout)
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	mu  sync.Mutex
	buf []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if over := len(l.buf) - maxSaid; over > 0 {
		l.buf = append(l.buf[:0], l.buf[over:]...)
	}
	return len(p), nil
}

func (l *lastBytes) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.TrimSpace(l.buf))
}
