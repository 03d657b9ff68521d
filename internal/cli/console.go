package cli

import (
	"context"
	"encoding/json"
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
	// ExitHeld is that a run that was waited for waits for somebody, and nobody may come.
	ExitHeld = 4
	// ExitMaxWait is that it did not end in time.
	ExitMaxWait = 5
	// ExitInterrupted is that somebody broke the wait off.
	ExitInterrupted = 130
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

	// Say takes what is said to the person, line by line; nil: it is written to Err.
	Say func(text string)
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
	text, code := err.Error(), ExitOther
	if _, ok := errors.AsType[*client.SilentError](err); ok {
		text += " with --timeout"
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		code = ExitUsage
	}
	if c.JSON || c.Say != nil {
		c.failJSON(err, text, code)
	} else {
		_, _ = fmt.Fprintln(c.Err, "tranche: "+InertText(text)) // nowhere else to say it
	}
	return code
}

// failJSON says what went wrong to a program: with what the server answered, if it was the server.
func (c *Console) failJSON(err error, text string, code int) {
	said := struct {
		Error   string          `json:"error"`
		Exit    int             `json:"exit"`
		Problem *client.Problem `json:"problem,omitempty"`
	}{Error: text, Exit: code}
	if problem, ok := errors.AsType[*client.ProblemError](err); ok {
		said.Problem = &problem.Problem
	}
	encoder := json.NewEncoder(c.Err)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(said) // nowhere else to say it
}

// Note says something to the person that is no part of the output.
func (c *Console) Note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if c.Say != nil {
		c.Say(text)
		return
	}
	_, _ = fmt.Fprintln(c.Err, "tranche: "+InertText(text)) // nowhere else to say it
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
