package connections

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/gather/strictyaml"
)

// Secret is a text that requests may carry to some hosts.
type Secret struct {
	Name string

	from  origin
	hosts []target
}

// target is a host that a secret may be sent to.
type target struct {
	scheme string // https or http
	host   string // in lower case
	port   string
}

// Value returns the secret for a request to u, or an error that says why it has no business there.
func (s *Secret) Value(u *url.URL) (string, error) {
	if !slices.Contains(s.hosts, targetOf(u)) {
		return "", fmt.Errorf("secret %q is not meant for %s://%s: that is none of its hosts in the connections file",
			s.Name, u.Scheme, u.Host)
	}
	return s.from.read()
}

func targetOf(u *url.URL) target {
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	t := target{scheme: strings.ToLower(u.Scheme), host: host, port: u.Port()}
	if t.port == "" {
		t.port = map[string]string{"http": "80", "https": "443"}[t.scheme]
	}
	return t
}

// readSecret reads a secret. Without a scheme a host is asked by https; a secret in plain text on the network has to be
// wanted, or it goes no further than this machine.
func (r *reader) readSecret(name string, v strictyaml.Value) (*Secret, error) {
	s := &Secret{Name: name}
	at := v
	err := v.Fields(append(s.from.fields(r), strictyaml.Field{Name: "hosts", Read: func(v strictyaml.Value) error {
		at = v
		return v.List(s.readHost)
	}})...)
	if err == nil {
		err = s.from.check(v)
	}
	if err == nil && len(s.hosts) == 0 {
		err = at.Fail("say which hosts it may be sent to, like hosts: [api.bank.example]")
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Secret) readHost(v strictyaml.Value) error {
	var host string
	if err := strictyaml.Text(&host)(v); err != nil {
		return err
	}
	targets, ok := parseTargets(host)
	if !ok {
		return v.Fail("want a host like api.bank.example, with a port if need be, or one with its scheme like " +
			"http://127.0.0.1:8081")
	}
	s.hosts = append(s.hosts, targets...)
	return nil
}

func parseTargets(text string) (targets []target, ok bool) {
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		scheme, rest = "https", text
	}
	u, err := url.Parse(scheme + "://" + rest)
	bare := err == nil && u.User == nil && u.Path == "" && u.RawQuery == "" && u.Fragment == "" && u.Hostname() != ""
	if !bare || u.Scheme != "https" && u.Scheme != "http" || strings.ContainsAny(u.Host, "*{}% ") {
		return nil, false
	}
	targets = []target{targetOf(u)}
	if address, err := netip.ParseAddr(u.Hostname()); err == nil && address.IsLoopback() && !found {
		u.Scheme = "http"
		targets = append(targets, targetOf(u))
	}
	return targets, true
}

// Redact replaces what is a secret in a text from outside, also in the forms that URLs and JSON give it.
func (c *Connections) Redact(text string) string {
	type form struct{ text, name string }
	var forms []form
	origins := map[string]*origin{}
	for _, s := range c.Secrets {
		origins[s.Name] = &s.from
	}
	if c.SMTP != nil && c.SMTP.Username != "" {
		origins["smtp password"] = &c.SMTP.from
	}
	for name, from := range origins {
		for _, secret := range from.all() {
			quoted, _ := json.Marshal(secret) // strings can be written
			json := string(quoted[1 : len(quoted)-1])
			for _, f := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), json} {
				forms = append(forms, form{f, name})
			}
		}
	}
	// The longest first: nothing stays of one that begins with another.
	slices.SortFunc(forms, func(a, b form) int { return cmp.Compare(len(b.text), len(a.text)) })
	for _, f := range forms {
		text = hide(text, f.text, "[secret "+f.name+"]")
	}
	return text
}

// HostPort is a host with its port, as which settings of hosts are found.
func HostPort(u *url.URL) string {
	t := targetOf(u)
	return net.JoinHostPort(t.host, t.port)
}
