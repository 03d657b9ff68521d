package connections

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue"
)

// Secret is a text that requests may send to some hosts.
type Secret struct {
	origin

	Name  string
	Hosts []targets `json:"hosts"`
}

type target struct {
	scheme string // https or http
	host   string // lower case
	port   string
}

// Value returns the secret for a request to u, or an error if u is not one of its hosts.
func (s *Secret) Value(u *url.URL) (string, error) {
	if !s.meantFor(u) {
		return "", fmt.Errorf("secret %q is not meant for %s://%s: that is none of its hosts in the connections file",
			s.Name, u.Scheme, u.Host)
	}
	return s.read()
}

func (s *Secret) meantFor(u *url.URL) bool {
	return slices.ContainsFunc(s.Hosts, func(t targets) bool { return slices.Contains(t, targetOf(u)) })
}

func targetOf(u *url.URL) target {
	host, port := workqueue.HostPort(u)
	return target{strings.ToLower(u.Scheme), host, port}
}

func (r *reader) secret(at, name string, s *Secret) error {
	s.Name = name
	if err := cmp.Or(r.name(at, name), r.text(at, &s.origin)); err != nil {
		return err
	}
	if len(s.Hosts) == 0 {
		return r.Fail(at+".hosts", "say which hosts it may be sent to, like hosts: [api.bank.example]")
	}
	return nil
}

// targets are the hosts of one text. Without a scheme https is meant. A secret leaves this machine unencrypted only
// if the text says http.
type targets []target

var errNoHost = errors.New("want a host like api.bank.example, with a port if need be, or one with its scheme like " +
	"http://127.0.0.1:8081")

func (t *targets) UnmarshalText(text []byte) error {
	scheme, rest, found := strings.Cut(string(text), "://")
	if !found {
		scheme, rest = "https", string(text)
	}
	u, err := url.Parse(scheme + "://" + rest)
	bare := err == nil && u.User == nil && u.Path == "" && u.RawQuery == "" && u.Fragment == "" && u.Hostname() != ""
	if !bare || u.Scheme != "https" && u.Scheme != "http" || strings.ContainsAny(u.Host, "*{}% ") {
		return errNoHost
	}
	*t = targets{targetOf(u)}
	if address, err := netip.ParseAddr(u.Hostname()); err == nil && address.IsLoopback() && !found {
		u.Scheme = "http"
		*t = append(*t, targetOf(u))
	}
	return nil
}

// Redact replaces secrets in untrusted text, also in their URL and JSON encodings.
func (c *Connections) Redact(text string) string {
	type form struct{ text, name string }
	var forms []form
	origins := map[string]*origin{}
	for _, s := range c.Secrets {
		origins[s.Name] = &s.origin
	}
	if c.SMTP != nil && c.SMTP.Username != "" {
		origins["smtp password"] = &c.SMTP.PasswordFrom.origin
	}
	for name, from := range origins {
		for _, secret := range from.all() {
			quoted, _ := json.Marshal(secret) // strings can be encoded
			json := string(quoted[1 : len(quoted)-1])
			plain, _ := jsontext.AppendQuote(nil, secret) // without escapes for HTML
			for _, f := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), json,
				string(plain[1 : len(plain)-1])} {
				forms = append(forms, form{f, name})
			}
		}
	}
	// Longest first, or the rest of a secret that begins with another would remain.
	slices.SortFunc(forms, func(a, b form) int { return cmp.Compare(len(b.text), len(a.text)) })
	for _, f := range forms {
		text = hide(text, f.text, "[secret "+f.name+"]")
	}
	return text
}

// HostPort is a host with port, the key of host settings.
func HostPort(u *url.URL) string {
	return net.JoinHostPort(workqueue.HostPort(u))
}

var errNoURL = errors.New("it is not a URL, or one of a host that it is not meant for")

// URL returns a secret that is a complete URL, as those of chats: its holder may post there. It must be on one of the
// secret's hosts. The error does not reveal it.
func (s *Secret) URL() (*url.URL, error) {
	text, err := s.read()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || !s.meantFor(u) {
		return nil, errNoURL
	}
	return u, nil
}

const (
	// maxSecret limits secrets, so that redaction of quoted answers can search a bounded part.
	maxSecret = 4 << 10
	// rereadAfter is the maximum age of a secret read from a file.
	rereadAfter = 10 * time.Second
)

// origin is the place of a text outside the file: an environment variable or a file.
type origin struct {
	Env  string `json:"env"`
	File string `json:"file"`

	mu    sync.Mutex
	text  string
	old   []string // previous values, for redaction
	since time.Time
}

// elsewhere is an origin where users may put the text itself by mistake.
type elsewhere struct{ origin }

func (e *elsewhere) ReadYAML(v strictyaml.Value) error {
	if _, itself := v.Text(); itself {
		return v.Fail("the text itself does not belong here; say where it is, like {env: VARIABLE} or {file: FILE}")
	}
	return v.Decode(&e.origin)
}

func (r *reader) text(at string, o *origin) error {
	if (o.Env == "") == (o.File == "") {
		return r.Fail(at, "say where it is: either env: VARIABLE or file: FILE")
	}
	o.File = r.relative(o.File)
	if _, err := o.read(); err != nil {
		return r.Fail(at, "%v", err)
	}
	return nil
}

// read returns the text. One from a file is reread periodically; if that fails the previous one stays valid.
func (o *origin) read() (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.text != "" && (o.File == "" || time.Since(o.since) < rereadAfter) {
		return o.text, nil
	}
	text, err := o.fetch()
	switch {
	case err != nil && o.text == "":
		return "", err
	case err == nil && text != o.text:
		if o.text != "" {
			o.old = append(o.old, o.text)
		}
		o.text = text
	}
	o.since = time.Now()
	return o.text, nil
}

func (o *origin) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append(slices.Clip(o.old), o.text)
}

func (o *origin) fetch() (string, error) {
	if o.Env != "" {
		text, set := os.LookupEnv(o.Env)
		if !set || text == "" {
			return "", fmt.Errorf("the environment has no %s, or it is empty", o.Env)
		}
		return text, checkText(text, "$"+o.Env)
	}
	file, err := os.Open(o.File)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // only read
	raw, err := io.ReadAll(io.LimitReader(file, maxSecret+2))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", o.File, err)
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	if text == "" {
		return "", fmt.Errorf("%s is empty", o.File)
	}
	return text, checkText(text, o.File)
}

var errControl = errors.New("it has a control character; want one line of text")

// checkText refuses texts that cannot be secrets or would break out of a header.
func checkText(text, where string) error {
	if len(text) > maxSecret {
		return fmt.Errorf("%s has more than %d bytes", where, maxSecret)
	}
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return fmt.Errorf("%s: %w", where, errControl)
	}
	return nil
}
