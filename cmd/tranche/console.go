package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// Exit codes.
const (
	exitOK     = 0
	exitOther  = 1
	exitUsage  = 2
	exitFailed = 3
)

// usageError is a mistake on the command line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// exitError ends the program with a code and without a message: everything has been said.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// console is the world of a command.
type console struct {
	in       io.Reader
	out, err io.Writer
	columns  int // of the output
	url      string
	timeout  time.Duration // 0: what the operations take
	json     bool
	token    tokenFlags
	answer   []byte // the last that was kept
}

// newConsole returns a console whose output is inert where a person looks at it, whatever the commands print.
func newConsole(in io.Reader, out, err *os.File) *console {
	c := &console{in: in, out: out, err: err, columns: width(out)}
	if isTerminal(out) {
		c.out = &inertWriter{to: out}
	}
	return c
}

// fail says what went wrong, if anything did, and returns the exit code.
func (c *console) fail(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, context.Canceled):
		c.note("stopped")
		return exitOther
	}
	text := err.Error()
	if _, ok := errors.AsType[*client.SilentError](err); ok {
		text += " with --timeout"
	}
	_, _ = fmt.Fprintln(c.err, "tranche: "+inertText(text)) // nowhere else to say it
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	return exitOther
}

// note says something to the person that is no part of the output.
func (c *console) note(format string, args ...any) {
	_, _ = fmt.Fprintln(c.err, "tranche: "+inertText(fmt.Sprintf(format, args...))) // nowhere else to say it
}

func (c *console) client() (*client.Client, error) {
	if c.timeout < 0 {
		return nil, &usageError{fmt.Sprintf("--timeout is %s; it must be positive", c.timeout)}
	}
	secret, err := c.token.secret(c)
	if err != nil {
		return nil, err
	}
	if secret != "" {
		warnOfPlainHTTP(c, c.url)
	}
	cl, err := client.New(c.url, client.WithActor(osUser()), client.WithTimeout(c.timeout),
		client.WithToken(secret))
	if err != nil {
		return nil, &usageError{"--url: " + err.Error()}
	}
	return cl, nil
}
