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

	"github.com/tranchehq/tranche/gather/strictyaml"
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

func (r *reader) readSMTP(v strictyaml.Value, into **SMTP) error {
	s := &SMTP{TLS: SMTPStartTLS}
	var server, ca string
	password := v
	err := v.Fields([]strictyaml.Field{
		{Name: "server", Read: strictyaml.Text(&server)},
		{Name: "from", Read: strictyaml.Text(&s.From)},
		{Name: "username", Read: strictyaml.Text(&s.Username)},
		{Name: "password", Read: func(v strictyaml.Value) error {
			password = v
			return s.from.elsewhere(r, v)
		}},
		{Name: "tls", Read: strictyaml.OneOf(&s.TLS, SMTPStartTLS, SMTPTLS, SMTPPlain)},
		{Name: "ca", Read: strictyaml.Text(&ca)},
		{Name: "recipients", Read: strictyaml.Texts(&s.Recipients)},
	}...)
	if err != nil {
		return err
	}
	if err := smtpServer(v, s, server); err != nil {
		return err
	}
	given := v.Given("password")
	switch {
	case given != (s.Username != ""):
		return v.Fail("username and password go together")
	case given && s.TLS == SMTPPlain && s.Host != "localhost" && !net.ParseIP(s.Host).IsLoopback():
		return v.Fail("tls: a password is not sent in plain text to another machine")
	case given:
		if err := s.from.check(password); err != nil {
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

func smtpServer(v strictyaml.Value, s *SMTP, server string) error {
	host, port, err := net.SplitHostPort(server)
	number, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || host == "" || number == 0 {
		return v.Fail("server: want a host with its port, like mail.bank.example:587")
	}
	s.Host, s.Port = host, int(number)
	if _, err := mail.ParseAddress(s.From); err != nil {
		return v.Fail("from: want an address, like tranche@bank.example")
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
