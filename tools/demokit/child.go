package demokit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tranchehq/tranche/internal/embedded"
)

const readyTimeout = 2 * time.Minute

const maxSaid = 2 << 10 // bytes of a log in an error

// Child is a long-lived process of a story. Its output goes to a log.
type Child struct {
	name   string
	log    string
	cmd    *exec.Cmd
	exited chan struct{} // closed after the end, when err is set
	err    error
}

// StartChild starts the program in its own process group, so that we handle Ctrl-C and stop children in order.
func StartChild(name, log string, cmd *exec.Cmd) (*Child, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer func() { _ = file.Close() }()
	cmd.Stderr = file
	if cmd.Stdout == nil {
		cmd.Stdout = file
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	embedded.DieWithParent(cmd.SysProcAttr, syscall.SIGKILL) // with its servers gone, it could not stop in order
	c := &Child{name: name, log: log, cmd: cmd, exited: make(chan struct{})}
	if err := embedded.StartChild(cmd, func(err error) { c.err = err; close(c.exited) }); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

func (c *Child) PID() int { return c.cmd.Process.Pid }

func (c *Child) Exited() <-chan struct{} { return c.exited }

// Failure returns an error that says why the child ended unexpectedly.
func (c *Child) Failure() error {
	return commandError(c.name, 0, c.err, tail(c.log)+"\n  its log: "+c.log)
}

// Kill ends the child like a crash.
func (c *Child) Kill() error {
	if err := c.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", c.name, err)
	}
	<-c.exited
	return nil
}

// Stop ends the child, by force when ctx ends.
func (c *Child) Stop(ctx context.Context) error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // an error means it ended
	select {
	case <-c.exited:
		return nil
	case <-ctx.Done():
	}
	_ = c.cmd.Process.Kill() // as above
	<-c.exited
	return fmt.Errorf("stop %s (pid %d): it did not end before the deadline and was killed", c.name, c.PID())
}

// commandError describes the unexpected end of a command. said is the end of its output, if the user has not seen it.
func commandError(command string, want int, err error, said string) error {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("run %s: %w", command, err)
	}
	ended := 0
	if exit != nil {
		ended = exit.ExitCode()
	}
	text := fmt.Sprintf("%s ended with exit code %d, not %d", command, ended, want)
	if ended < 0 {
		text = command + " was ended by a signal"
	}
	if said = lastLines(said); said != "" {
		text += ":\n" + said
	}
	return errors.New(text)
}

func tail(path string) string {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > maxSaid {
		if _, err := f.Seek(-maxSaid, io.SeekEnd); err != nil {
			return ""
		}
	}
	text, _ := io.ReadAll(io.LimitReader(f, maxSaid)) // what can be read is enough
	return string(text)
}

func lastLines(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	lines := strings.Split(text, "\n")
	lines = lines[max(0, len(lines)-8):]
	return "  " + strings.Join(lines, "\n  ")
}

// Start starts a child that is stopped at the end of the story. Unless into is nil, it awaits its announcement.
func (s *Story) Start(ctx context.Context, name, log string, cmd *exec.Cmd, into any) (c *Child, err error) {
	if into == nil {
		c, err = StartChild(name, log, cmd)
	} else {
		c, err = StartAnnounced(ctx, name, log, cmd, into)
	}
	if c != nil {
		s.OnStop(c.Stop)
	}
	return c, err
}

// StartAnnounced starts a child and waits until it announces itself in JSON on standard output. The child is not nil
// if it was started, also with an error.
func StartAnnounced(ctx context.Context, name, log string, cmd *exec.Cmd, into any) (*Child, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	cmd.Stdout = w
	c, err := StartChild(name, log, cmd)
	err = errors.Join(err, w.Close())
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	announced := make(chan error, 1)
	go func() {
		defer func() { _ = r.Close() }()
		announced <- json.NewDecoder(r).Decode(into)
		_, _ = io.Copy(io.Discard, r) // a closed pipe would kill the child at its next write
	}()
	return c, c.await(ctx, announced)
}

func (c *Child) await(ctx context.Context, announced <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	select {
	case err := <-announced:
		if err == nil {
			return nil
		}
		select { // it closed its output and is ending
		case <-c.exited:
			return c.Failure()
		case <-ctx.Done():
			return fmt.Errorf("understand what %s prints: %w", c.name, err)
		}
	case <-ctx.Done():
		return fmt.Errorf("wait for %s (its log: %s): %w", c.name, c.log, ctx.Err())
	}
}
