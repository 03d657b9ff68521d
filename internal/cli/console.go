package cli

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
	ExitOK     = 0
	ExitOther  = 1
	ExitUsage  = 2
	ExitFailed = 3
)

// usageError is a mistake on the command line.
type usageError struct{ text string }

// Usage is a mistake on the command line.
func Usage(text string) error { return &usageError{text} }

// Exit ends the program with a code; everything has been said.
func Exit(code int) error { return &exitError{code} }

func (e *usageError) Error() string { return e.text }

// exitError ends the program with a code and without a message: everything has been said.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// Console is the world of a command.
type Console struct {
	In       io.Reader
	Out, Err io.Writer
	Columns  int // of the output
	URL      string
	Timeout  time.Duration // 0: what the operations take
	JSON     bool
	Token    TokenFlags
	Answer   []byte // the last that was kept
}

// NewConsole returns a console whose output is inert where a person looks at it, whatever the commands print.
func NewConsole(in io.Reader, out, err *os.File) *Console {
	c := &Console{In: in, Out: out, Err: err, Columns: Width(out)}
	if IsTerminal(out) {
		c.Out = &inertWriter{to: out}
	}
	return c
}

// Fail says what went wrong, if anything did, and returns the exit code.
func (c *Console) Fail(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, context.Canceled):
		c.Note("stopped")
		return ExitOther
	}
	text := err.Error()
	if _, ok := errors.AsType[*client.SilentError](err); ok {
		text += " with --timeout"
	}
	_, _ = fmt.Fprintln(c.Err, "tranche: "+InertText(text)) // nowhere else to say it
	if _, ok := errors.AsType[*usageError](err); ok {
		return ExitUsage
	}
	return ExitOther
}

// Note says something to the person that is no part of the output.
func (c *Console) Note(format string, args ...any) {
	_, _ = fmt.Fprintln(c.Err, "tranche: "+InertText(fmt.Sprintf(format, args...))) // nowhere else to say it
}

// Client returns a client of the API, as the flags say.
func (c *Console) Client() (*client.Client, error) {
	if c.Timeout < 0 {
		return nil, &usageError{fmt.Sprintf("--timeout is %s; it must be positive", c.Timeout)}
	}
	secret, err := c.Token.secret(c)
	if err != nil {
		return nil, err
	}
	if secret != "" {
		warnOfPlainHTTP(c, c.URL)
	}
	cl, err := client.New(c.URL, client.WithActor(OSUser()), client.WithTimeout(c.Timeout),
		client.WithToken(secret))
	if err != nil {
		return nil, &usageError{"--url: " + err.Error()}
	}
	return cl, nil
}
