package connections

import (
	"crypto/x509"
	"errors"
	"net"
	"net/mail"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// TLS of an SMTP server.
const (
	SMTPStartTLS = "starttls" // required
	SMTPTLS      = "tls"      // from the first byte
	SMTPPlain    = "none"
)

// SMTP is the server that takes mail.
type SMTP struct {
	Host     string
	Port     int
	From     string // an address, with a name if one was given
	Username string // empty: without a login
	TLS      string
	RootCAs  *x509.CertPool // nil: the system's
	// Recipients are the domains that mail may go to; empty: all.
	Recipients []string

	from origin // of the password
}

// Password returns what goes with the username.
func (s *SMTP) Password() (string, error) {
	if s.Username == "" {
		return "", nil
	}
	return s.from.read()
}

// Allows reports whether mail may go to an address.
func (s *SMTP) Allows(address string) bool {
	_, domain, _ := strings.Cut(address, "@")
	return len(s.Recipients) == 0 || slices.ContainsFunc(s.Recipients, func(d string) bool {
		return strings.EqualFold(d, domain)
	})
}

func (r *reader) readSMTP(v value, into **SMTP) error {
	s := &SMTP{TLS: SMTPStartTLS}
	var server, ca string
	password := v
	err := r.mapping(v, []field{
		{"server", r.text(&server, "a host with its port, like mail.bank.example:587")},
		{"from", r.text(&s.From, "an address, like tranche@bank.example")},
		{"username", r.text(&s.Username, "a name")},
		{"password", func(v value) error {
			password = v
			if kind(v.node) == "a text" {
				return r.fail(v, "the text itself does not belong here; say where it stands, like {env: VARIABLE} or {file: FILE}")
			}
			return r.mapping(v, s.from.fields(r))
		}},
		{"tls", func(v value) error { return r.smtpTLS(v, s) }},
		{"ca", r.text(&ca, "a file of certificates")},
		{"recipients", r.texts(&s.Recipients, "domains like bank.example")},
	})
	if err != nil {
		return err
	}
	if err := r.smtpServer(v, s, server); err != nil {
		return err
	}
	given := password.path != v.path
	switch {
	case given != (s.Username != ""):
		return r.fail(v, "username and password go together")
	case given && s.TLS == SMTPPlain && s.Host != "localhost" && !net.ParseIP(s.Host).IsLoopback():
		return r.fail(v, "tls: a password is not sent in plain text to another machine")
	case given:
		if err := s.from.check(r, password); err != nil {
			return err
		}
	}
	if ca != "" {
		if s.RootCAs, err = r.authorities(v, ca); err != nil {
			return err
		}
	}
	*into = s
	return nil
}

func (r *reader) smtpTLS(v value, s *SMTP) error {
	if err := r.text(&s.TLS, "starttls, tls or none")(v); err != nil {
		return err
	}
	if !slices.Contains([]string{SMTPStartTLS, SMTPTLS, SMTPPlain}, s.TLS) {
		return r.fail(v, "want starttls, tls or none")
	}
	return nil
}

func (r *reader) smtpServer(v value, s *SMTP, server string) error {
	host, port, err := net.SplitHostPort(server)
	number, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || host == "" || number == 0 {
		return r.fail(v, "server: want a host with its port, like mail.bank.example:587")
	}
	s.Host, s.Port = host, int(number)
	if _, err := mail.ParseAddress(s.From); err != nil {
		return r.fail(v, "from: want an address, like tranche@bank.example")
	}
	return nil
}

var errNoURL = errors.New("it is no URL, or one of a host that it is not meant for")

// URL returns a secret that is a URL as a whole, as those of chats are: who knows it may write there. It has to lead to
// one of the secret's hosts. The error tells nothing of it.
func (s *Secret) URL() (*url.URL, error) {
	text, err := s.from.read()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || !slices.Contains(s.hosts, targetOf(u)) {
		return nil, errNoURL
	}
	return u, nil
}
