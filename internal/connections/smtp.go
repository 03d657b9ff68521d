package connections

import (
	"cmp"
	"crypto/x509"
	"net"
	"net/mail"
	"slices"
	"strconv"
	"strings"
)

// TLS modes of an SMTP server.
const (
	SMTPStartTLS = "starttls" // required
	SMTPTLS      = "tls"      // from the first byte
	SMTPPlain    = "none"
)

// SMTP is the mail server.
type SMTP struct {
	Server       string    `json:"server"`
	From         string    `json:"from" doc:"an address, optionally with a name"`
	Username     string    `json:"username" doc:"default: no login"`
	PasswordFrom elsewhere `json:"password"`
	TLS          string    `json:"tls" enum:"starttls,tls,none"`
	CA           string    `json:"ca"`
	// Recipients are the permitted domains; empty: all.
	Recipients []string `json:"recipients"`

	Host    string
	Port    int
	RootCAs *x509.CertPool // nil: the system's
}

// Password returns the password of Username.
func (s *SMTP) Password() (string, error) {
	if s.Username == "" {
		return "", nil
	}
	return s.PasswordFrom.read()
}

// Allows reports whether mail may go to an address.
func (s *SMTP) Allows(address string) bool {
	_, domain, _ := strings.Cut(address, "@")
	return len(s.Recipients) == 0 || slices.ContainsFunc(s.Recipients, func(d string) bool {
		return strings.EqualFold(d, domain)
	})
}

func (r *reader) smtp(s *SMTP) error {
	if s == nil {
		return nil
	}
	s.TLS = cmp.Or(s.TLS, SMTPStartTLS)
	host, port, err := net.SplitHostPort(s.Server)
	number, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || host == "" || number == 0 {
		return r.Fail("smtp", "server: want a host with its port, like mail.bank.example:587")
	}
	s.Host, s.Port = host, int(number)
	if _, err := mail.ParseAddress(s.From); err != nil {
		return r.Fail("smtp", "from: want an address, like tranche@bank.example")
	}
	given := r.Given("smtp.password")
	switch {
	case given != (s.Username != ""):
		return r.Fail("smtp", "username and password go together")
	case given && s.TLS == SMTPPlain && s.Host != "localhost" && !net.ParseIP(s.Host).IsLoopback():
		return r.Fail("smtp", "tls: a password is not sent in plain text to another machine")
	case given:
		if err := r.text("smtp.password", &s.PasswordFrom.origin); err != nil {
			return err
		}
	}
	s.RootCAs, err = r.authorities("smtp", s.CA)
	return err
}
