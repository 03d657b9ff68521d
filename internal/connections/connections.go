// Package connections reads the operator's file of what plans may reach beyond Tranche's own services: the databases
// that they may query, the secrets that they may send and to whom, and how HTTP services are spoken to; and the
// server that takes mail.
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
// Plans name sources and secrets and never contain them, so whoever writes plans needs to know neither. Files that are
// named stand beside the file itself unless their path is absolute.
//
// Guarantees: an error names the file, the line, the column and the field, and quotes nothing of a value, which may be
// a password
// in the wrong place. A secret is given out for the hosts that it is meant for only. Secrets and passwords that stand
// in files are read again, so that they can be changed while a node runs.
//
// Not its job: plans, requests, queries.
//
// Concurrency: what Load returns can be shared.
package connections

import (
	"cmp"
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

	"github.com/tranchehq/tranche/gather/strictyaml"
)

const maxFile = 1 << 20

// Connections is what plans may reach. The zero value has no sources and no secrets, and reaches public addresses only.
type Connections struct {
	Sources map[string]*Source `json:"sources" want:"sources by their names"`
	Secrets map[string]*Secret `json:"secrets" want:"secrets by their names"`
	HTTP    HTTP               `json:"http"`
	SMTP    *SMTP              `json:"smtp"` // nil: no mail is sent
}

// Load reads a file. An error is a *[strictyaml.Error], or says why the file cannot be read.
func Load(path string) (*Connections, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("connections: %w", err)
	}
	defer func() { _ = file.Close() }() // it was read
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("connections: read %s: %w", path, err)
	}
	return Parse(path, text)
}

// Parse reads the text of a file of that path, beside which the files stand that it names.
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
	for _, name := range sorted(c.Sources) { // of several mistakes always the same one is told
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

// reader completes what was read, by files that it names, and refuses what does not go together.
type reader struct {
	*strictyaml.Document

	directory string
}

func sorted[T any](of map[string]T) []string { return slices.Sorted(maps.Keys(of)) }

// beside makes a path that is not absolute one beside the file.
func (r *reader) beside(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.directory, path)
}

// names are what sources and secrets may be called.
var names = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (r *reader) name(path, name string) error {
	if !names.MatchString(name) {
		return r.Fail(path, "want a name of up to 64 of A-Z a-z 0-9 _ -")
	}
	return nil
}

// Source returns the source of a name, or an *UnknownError.
func (c *Connections) Source(name string) (*Source, error) { return lookUp("source", name, c.Sources) }

// Secret returns the secret of a name, or an *UnknownError.
func (c *Connections) Secret(name string) (*Secret, error) { return lookUp("secret", name, c.Secrets) }

func lookUp[T any](what, name string, in map[string]*T) (*T, error) {
	if found := in[name]; found != nil {
		return found, nil
	}
	return nil, &UnknownError{what, name, strings.Join(slices.Sorted(maps.Keys(in)), ", ")}
}

// ResponseLimit returns how many bytes of a response are read when a plan wants so many; 0: it does not say.
func (h *HTTP) ResponseLimit(want int) int {
	most := cmp.Or(int(h.MaxResponse), DefaultMaxResponse)
	return min(cmp.Or(want, most), most)
}

// UnknownError says that nothing of a name is configured.
type UnknownError struct {
	What  string // source, secret
	Name  string
	Known string // the names that there are
}

func (e *UnknownError) Error() string {
	known := "there are none"
	if e.Known != "" {
		known = "there are " + e.Known
	}
	return fmt.Sprintf("this node knows no %s %q; %s (serve --connections FILE says which)", e.What, e.Name, known)
}

// shortSecret is a length below which a secret may well be a part of common words.
const shortSecret = 8

// hide replaces a secret in a text. A short one is replaced where it stands as a word only: of the words that contain
// it nothing would be left to read, and they would tell it.
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
