// Package connections reads the operator's file of what plans may access: databases, secrets and their hosts, HTTP
// settings, and the mail server.
//
//	sources:
//	  ledger:
//	    dsn: {env: LEDGER_DSN}       # or {file: /run/secrets/ledger}; never the text itself
//	    max_connections: 4
//	    max_rows: 1000000            # of a query
//	    max_bytes: 256MiB
//	    max_time: 30s
//	secrets:
//	  branch-token:
//	    file: branch.token           # or env: BRANCH_TOKEN
//	    hosts: [api.bank.example]    # https; another scheme and a port can be said: "http://127.0.0.1:8081"
//	http:
//	  allow_private: ["127.0.0.1:8081", 10.0.0.0/8]
//	  max_response: 16MiB
//	  hosts:
//	    api.bank.example: {ca: ca.pem, cert: client.pem, key: client.key, max_connections: 20}
//	smtp:
//	  server: mail.bank.example:587
//	  from: tranche@bank.example
//	  username: tranche
//	  password: {file: smtp.password}
//	  tls: starttls                # or tls, none
//	  recipients: [bank.example]   # domains that mail may go to; all when left out
//
// Plans name sources and secrets but never contain them, so their authors need not know them. Relative paths of files
// start at the file's directory.
//
// Guarantees: an error names file, line, column and field but quotes no value, which may be a misplaced password. A
// secret is returned for its hosts only. Secrets in files are reread, so they can change while a node runs.
//
// Not its job: plans, requests, queries. The result of Load is safe for concurrent use.
package connections

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/gather/strictyaml"
)

const maxFile = 1 << 20

// Connections is what plans may access. The zero value has no sources and secrets, and permits public addresses only.
type Connections struct {
	Sources map[string]*Source `json:"sources" want:"sources by their names"`
	Secrets map[string]*Secret `json:"secrets" want:"secrets by their names"`
	HTTP    HTTP               `json:"http"`
	SMTP    *SMTP              `json:"smtp"` // nil: no mail is sent
}

// Load reads a file. It returns a *[strictyaml.Error], or an error that the file cannot be read.
func Load(path string) (*Connections, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("connections: %w", err)
	}
	defer func() { _ = file.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("connections: read %s: %w", path, err)
	}
	return Parse(path, text)
}

// Parse parses the file at path; relative paths in it start at its directory.
func Parse(path string, text []byte) (*Connections, error) {
	doc, err := strictyaml.OpenSecret("connections", path, text, maxFile)
	if err != nil {
		return nil, err
	}
	c := &Connections{}
	if err := doc.Root.Decode(c); err != nil {
		return nil, err
	}
	r := &reader{doc, filepath.Dir(path)}
	for _, name := range sorted(c.Sources) { // sorted, so that of several mistakes always the same is reported
		if err := r.source("sources."+name, name, c.Sources[name]); err != nil {
			return nil, err
		}
	}
	for _, name := range sorted(c.Secrets) {
		if err := r.secret("secrets."+name, name, c.Secrets[name]); err != nil {
			return nil, err
		}
	}
	return c, cmp.Or(r.http(&c.HTTP), r.smtp(c.SMTP))
}

const readServer = `SELECT session_user, system_identifier FROM pg_catalog.pg_control_system()`

// Serve names the node's own database, before sources are used: those in its cluster must not have its role.
func (c *Connections) Serve(
	ctx context.Context, own interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	},
) error {
	if len(c.Sources) == 0 {
		return nil
	}
	var by server
	if err := own.QueryRow(ctx, readServer).Scan(&by.role, &by.cluster); err != nil {
		return fmt.Errorf("read the role that serves: %w", err)
	}
	for _, s := range c.Sources {
		s.server = by
	}
	return nil
}

type reader struct {
	*strictyaml.Document

	directory string
}

func sorted[T any](of map[string]T) []string { return slices.Sorted(maps.Keys(of)) }

func (r *reader) relative(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.directory, path)
}

var names = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (r *reader) name(path, name string) error {
	if !names.MatchString(name) {
		return r.Fail(path, "want a name of up to 64 of A-Z a-z 0-9 _ -")
	}
	return nil
}

// Source returns a source by name.
func (c *Connections) Source(name string) (*Source, error) { return lookUp("source", name, c.Sources) }

// Secret returns a secret by name.
func (c *Connections) Secret(name string) (*Secret, error) { return lookUp("secret", name, c.Secrets) }

func lookUp[T any](what, name string, in map[string]*T) (*T, error) {
	if found := in[name]; found != nil {
		return found, nil
	}
	known := cmp.Or(strings.Join(slices.Sorted(maps.Keys(in)), ", "), "none")
	return nil, fmt.Errorf("this node knows no %s %q; there are %s (serve --connections FILE says which)", what, name,
		known)
}

// ResponseLimit returns the limit on a response in bytes, for a plan's limit want; 0: none.
func (h *HTTP) ResponseLimit(want int) int {
	most := cmp.Or(int(h.MaxResponse), DefaultMaxResponse)
	return min(cmp.Or(want, most), most)
}

// shortSecret is the length below which a secret may be part of common words.
const shortSecret = 8

// hide replaces a secret in a text. A short one is replaced as a separate word only: replacing it within words would
// make them unreadable and reveal it.
func hide(text, secret, instead string) string {
	if secret == "" {
		return text
	}
	if utf8.RuneCountInString(secret) >= shortSecret {
		return strings.ReplaceAll(text, secret, instead)
	}
	var b strings.Builder
	for {
		at := strings.Index(text, secret)
		if at < 0 {
			b.WriteString(text)
			return b.String()
		}
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		first, size := utf8.DecodeRuneInString(secret)
		last, _ := utf8.DecodeLastRuneInString(secret)
		after, _ := utf8.DecodeRuneInString(text[at+len(secret):])
		if inWord(before) && inWord(first) || inWord(last) && inWord(after) {
			b.WriteString(text[:at+size])
			text = text[at+size:]
			continue
		}
		b.WriteString(text[:at] + instead)
		text = text[at+len(secret):]
	}
}

func inWord(r rune) bool {
	return r != utf8.RuneError && (r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r))
}
