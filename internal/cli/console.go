// Package cli holds what commands share: the console, tables and text, input files, and how mistakes end. Below it,
// package runs has the commands about runs, and package admin all others, a file for each noun. cmd/tranche puts them
// together.
//
// kong calls the Validate of the command that was chosen, and then its Run, with the console and, if it asks for one, a
// client of the API.
package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// Exit codes.
const (
	ExitOK     = 0
	ExitOther  = 1
	ExitUsage  = 2
	ExitFailed = 3
	// ExitHeld is that a run that was waited for waits for someone, and no one may come.
	ExitHeld = 4
	// ExitMaxWait is that it did not end before its timeout.
	ExitMaxWait = 5
	// ExitUnreachable is that no server answers, or that it cannot serve now: the same may succeed later.
	ExitUnreachable = 6
	// ExitRefused is that the server said no.
	ExitRefused = 7
	// ExitCancelled is that a run that was waited for was cancelled.
	ExitCancelled = 8
	// ExitInterrupted is that someone broke the wait off.
	ExitInterrupted = 130
)

type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// Usage is a mistake on the command line.
func Usage(text string) error { return &usageError{text} }

// exitError ends the program with a code and without a message: everything has been said.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// Exit ends the program with a code; everything has been said.
func Exit(code int) error { return &exitError{code} }

// FailIf ends the program with a code if something failed, and all that is to be said of it was.
func FailIf(failed bool, code int, err error) error {
	if err == nil && failed {
		return Exit(code)
	}
	return err
}

// Console is the world of a command.
type Console struct {
	In       io.Reader
	Out, Err io.Writer
	Columns  int           // of the output
	URL      string        // several, with commas: the first that answers is called
	CA       string        // a file of authorities to trust in addition to the system's; empty: none
	Timeout  time.Duration // 0: what the operations take
	JSON     bool
	Token    TokenFlags
	Answer   []byte // the last of the server, as it was sent

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
	text, code := err.Error(), codeOf(err)
	if _, ok := errors.AsType[*client.NoResponseError](err); ok {
		text += " with --timeout"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		text += "; name the authority that signed the server's certificate with --ca FILE"
	}
	if c.JSON || c.Say != nil {
		c.failJSON(err, text, code)
	} else {
		c.Note("%s", text)
	}
	return code
}

func codeOf(err error) int {
	if _, ok := errors.AsType[*usageError](err); ok {
		return ExitUsage
	}
	_, away := errors.AsType[*client.UnreachableError](err)
	_, silent := errors.AsType[*client.NoResponseError](err)
	problem, said := errors.AsType[*client.ProblemError](err)
	switch {
	case away || silent || said && problem.Status > http.StatusNotImplemented: // not ready, or a proxy in front of it
		return ExitUnreachable
	case said && problem.Status < http.StatusInternalServerError:
		return ExitRefused
	default:
		return ExitOther
	}
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

// Notes says what a server warns of, a line each.
func (c *Console) Notes(warnings []string) {
	for _, w := range warnings {
		c.Note("%s", w)
	}
}

// Warn is Notes, with each called a warning.
func (c *Console) Warn(warnings []string) {
	for _, w := range warnings {
		c.Note("warning: %s", w)
	}
}

// Client returns a client of the API, as the flags say. The console has its last answer.
func (c *Console) Client() (*client.Client, error) {
	secret, err := c.Token.secret(c)
	if err != nil {
		return nil, err
	}
	for server := range strings.SplitSeq(c.URL, ",") {
		if secret != "" {
			warnOfPlainHTTP(c, strings.TrimSpace(server))
		}
	}
	options := []client.Option{client.WithActor(OSUser()), client.WithTimeout(c.Timeout), client.WithToken(secret),
		client.WithEach(client.Raw(&c.Answer))}
	if c.CA != "" {
		options = append(options, client.WithCA(c.CA))
	}
	cl, err := client.New(c.URL, options...)
	if err != nil {
		return nil, &usageError{"--url, --ca: " + err.Error()}
	}
	return cl, nil
}

// lookAgain is the pause between two looks at what became of a wish.
const lookAgain = 200 * time.Millisecond

// Await looks, every lookAgain, until look knows or fails, ctx ends, or patience is used up, which is no error: the
// caller shows what was seen last.
func Await(ctx context.Context, patience time.Duration, look func() (known bool, err error)) error {
	if patience == 0 {
		return nil
	}
	end := time.After(patience)
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		if known, err := look(); known || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			return nil
		case <-tick.C:
		}
	}
}

// TokenFlags are where a command has its token from.
type TokenFlags struct {
	Token     string `env:"TRANCHE_TOKEN" help:"The token to use. Others on this machine can see a command line: better a file." placeholder:"SECRET"`
	TokenFile string `env:"TRANCHE_TOKEN_FILE" help:"A file with the token to use, readable by you alone." placeholder:"FILE"`
}

// maxTokenFile bounds what is read for a token.
const maxTokenFile = 4096

// secret returns the token; empty when none was given.
func (f *TokenFlags) secret(term *Console) (string, error) {
	secret, from := f.Token, "--token (or TRANCHE_TOKEN)"
	if f.TokenFile != "" {
		if secret != "" {
			return "", &usageError{"--token (or TRANCHE_TOKEN) and --token-file (or TRANCHE_TOKEN_FILE) are both given; " +
				"leave one out"}
		}
		from = "--token-file " + f.TokenFile
		text, err := readTokenFile(f.TokenFile, term)
		if err != nil {
			return "", &usageError{"--token-file: " + err.Error()}
		}
		if secret = strings.TrimSpace(text); secret == "" {
			return "", &usageError{from + " is empty; it must hold a token, like " + access.Prefix + "…"}
		}
	}
	if secret != "" && !access.WellFormed(secret) {
		return "", &usageError{fmt.Sprintf("%s is not a token: one begins with %s and has %d characters; it may have been "+
			"cut off", from, access.Prefix, access.SecretChars)}
	}
	return secret, nil
}

func readTokenFile(name string, term *Console) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		term.Note("warning: %s can be read by others (mode %04o); keep it to yourself: chmod 600 %s", name,
			info.Mode().Perm(), ShellWord(name))
	}
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFile))
	return string(text), err
}

// warnOfPlainHTTP tells that a token is about to be sent so that others can read it.
func warnOfPlainHTTP(term *Console, server string) {
	parsed, err := url.Parse(server)
	if err != nil || parsed.Scheme != "http" || parsed.Hostname() == "localhost" {
		return
	}
	if ip := net.ParseIP(parsed.Hostname()); ip == nil || !ip.IsLoopback() {
		term.Note("warning: the token goes to %s unencrypted; use https", parsed.Host)
	}
}

// ShellWord is a text as a shell takes it for one word.
func ShellWord(text string) string {
	for _, r := range text {
		plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !plain && r != '/' && r != '.' && r != '-' && r != '_' && r != ':' {
			return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
		}
	}
	if text == "" {
		return "''"
	}
	return text
}
