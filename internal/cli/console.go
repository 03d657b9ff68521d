// Package cli has what commands share: console, tables, text, input files and exit codes. Package runs has the
// commands about runs, package admin the rest, one file per resource. cmd/tranche combines them.
//
// kong calls Validate and then Run of the chosen command, with the console and, if requested, an API client.
package cli

import (
	"bytes"
	"cmp"
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
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/health"
)

// Exit codes.
const (
	ExitOK     = 0
	ExitOther  = 1
	ExitUsage  = 2
	ExitFailed = 3
	// ExitHeld means that the watched run waits for a decision while no user may be there to make it.
	ExitHeld = 4
	// ExitMaxWait means that the run did not end within --max-wait.
	ExitMaxWait = 5
	// ExitUnreachable means that no server answers or can serve now; a retry may succeed.
	ExitUnreachable = 6
	// ExitRefused means that the server refused the request.
	ExitRefused = 7
	// ExitCancelled means that the watched run was cancelled.
	ExitCancelled = 8
	// ExitInterrupted means that the user interrupted the wait.
	ExitInterrupted = 130
)

type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// Usage returns an error in the command line.
func Usage(text string) error { return &usageError{text} }

type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// Exit returns an error that ends the program with a code and no message.
func Exit(code int) error { return &exitError{code} }

// FailIf returns err, or Exit(code) if something failed that was already reported.
func FailIf(failed bool, code int, err error) error {
	if err == nil && failed {
		return Exit(code)
	}
	return err
}

// Console is the environment of a command.
type Console struct {
	In       io.Reader
	Out, Err io.Writer
	Columns  int    // of the output
	URL      string // comma-separated servers; the first that answers is used
	CA       string // a file of CAs to trust in addition to the system's; may be empty
	Cert     string // a file of a client certificate, and that of its key; may be empty
	KeyFile  string
	Timeout  time.Duration // 0: each operation's default
	JSON     bool

	Namespace string // to act in; empty: all that the token allows

	Token  TokenFlags
	Answer []byte // the server's last answer, as received

	// Say receives messages to the user, line by line; nil: they go to Err.
	Say func(text string)
}

// NewConsole returns a console whose output to a terminal has its control characters escaped.
func NewConsole(in io.Reader, out, err *os.File) *Console {
	c := &Console{In: in, Out: out, Err: err, Columns: Width(out)}
	if IsTerminal(out) {
		c.Out = &inertWriter{to: out}
	}
	return c
}

// inertWriter escapes control characters except line breaks and tabs. A write may end within a character.
type inertWriter struct {
	to   io.Writer
	rest []byte
}

func (w *inertWriter) Write(p []byte) (int, error) {
	text := slices.Concat(w.rest, p)
	whole := len(text)
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if start := len(text) - back; utf8.RuneStart(text[start]) {
			if !utf8.FullRune(text[start:]) {
				whole = start
			}
			break
		}
	}
	w.rest = text[whole:]
	if _, err := io.WriteString(w.to, escape(string(text[:whole]), "\n\t")); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Document prints a JSON document.
func (c *Console) Document(v any) error {
	if err := c.Keep(v); err != nil {
		return err
	}
	return c.Sent()
}

// Keep makes a document the last answer.
func (c *Console) Keep(v any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	c.Answer = bytes.TrimSpace(text.Bytes())
	return err //nolint:wrapcheck // names what cannot be written
}

// Sent prints the last answer as received, including members unknown to this program.
func (c *Console) Sent() error {
	var out bytes.Buffer
	if err := json.Indent(&out, c.Answer, "", "  "); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return c.Printf("%s\n", out.Bytes())
}

// Answered ends a command that prints no text: with the error or the answer as received.
func (c *Console) Answered(err error) error {
	if err != nil {
		return err
	}
	return c.Sent()
}

// Printf writes to the output.
func (c *Console) Printf(format string, args ...any) error {
	if _, err := fmt.Fprintf(c.Out, format, args...); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Width is the number of columns of w.
func Width(w io.Writer) int {
	if file, ok := w.(*os.File); ok {
		if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
			return columns
		}
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

// OSUser is the operating system's user, for the audit log.
func OSUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return os.Getenv("USER")
}

// Room is the length of a line: a terminal's columns, or 0 for unlimited.
func (c *Console) Room() int {
	if IsTerminalOut(c) {
		return c.Columns
	}
	return 0
}

// IsTerminalOut reports whether standard output is a terminal.
func IsTerminalOut(term *Console) bool {
	_, ok := term.Out.(*inertWriter)
	return ok
}

// Fail reports an error, if any, and returns the exit code.
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
	_, away := errors.AsType[*client.UnreachableError](err)
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok && away {
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
	if _, ok := errors.AsType[*client.ActPendingError](err); ok {
		return ExitHeld
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
	_ = encoder.Encode(said) // nowhere else to report it
}

// Note prints a message to the user that is not output.
func (c *Console) Note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if c.Say != nil {
		c.Say(text)
		return
	}
	_, _ = fmt.Fprintln(c.Err, "tranche: "+InertText(text)) // nowhere else to report it
}

// Notes prints the server's warnings, one per line.
func (c *Console) Notes(warnings []string) {
	for _, w := range warnings {
		c.Note("%s", w)
	}
}

// Warn is Notes with the prefix "warning: ".
func (c *Console) Warn(warnings []string) {
	for _, w := range warnings {
		c.Note("warning: %s", w)
	}
}

// Client returns an API client configured by the flags. The console keeps its last answer.
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
		client.WithEach(client.Raw(&c.Answer), client.Namespace(c.Namespace))}
	flag := "--url: "
	if c.CA != "" {
		options = append(options, client.WithCA(c.CA))
		if _, err := client.Authorities(c.CA); err != nil {
			flag = "--ca: "
		}
	}
	if c.Cert != "" || c.KeyFile != "" {
		options = append(options, client.WithCertificate(c.Cert, c.KeyFile))
		if _, err := tls.LoadX509KeyPair(c.Cert, c.KeyFile); err != nil {
			flag = "--cert and --key-file, which need each other: "
		}
	}
	cl, err := client.New(c.URL, options...)
	if err != nil {
		return nil, &usageError{flag + err.Error()}
	}
	return cl, nil
}

// lookAgain is the polling interval of Await.
const lookAgain = 200 * time.Millisecond

// Await polls look until it knows or fails, ctx ends, or patience is used up. The latter is not an error: the caller
// shows the last state.
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

// TokenFlags select the token of a command.
type TokenFlags struct {
	Token     string `env:"TRANCHE_TOKEN" help:"The token to use. Others on this machine can see a command line: better a file." placeholder:"SECRET"`
	TokenFile string `env:"TRANCHE_TOKEN_FILE" help:"A file with the token to use, readable by you alone." placeholder:"FILE"`
}

const maxTokenFile = 4096

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
			return "", &usageError{fmt.Sprintf("%s: %v", from, cmp.Or(errors.Unwrap(err), err))}
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
	defer func() { _ = file.Close() }() // only read
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		term.Note("warning: %s can be read by others (mode %04o); keep it to yourself: chmod 600 %s", name,
			info.Mode().Perm(), health.ShellWord(name))
	}
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFile))
	return string(text), err
}

// warnOfPlainHTTP warns that the token is about to be sent unencrypted.
func warnOfPlainHTTP(term *Console, server string) {
	parsed, err := url.Parse(server)
	if err != nil || parsed.Scheme != "http" || parsed.Hostname() == "localhost" {
		return
	}
	if ip := net.ParseIP(parsed.Hostname()); ip == nil || !ip.IsLoopback() {
		term.Note("warning: the token goes to %s unencrypted; use https", parsed.Host)
	}
}
