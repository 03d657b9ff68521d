package alerts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	netmail "net/mail"
	"strconv"
	"strings"

	"github.com/wneessen/go-mail"

	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/webhook"
)

func (r *Receivers) checkEmail(to *Email) error {
	if r.conns.SMTP == nil {
		return errNoSMTP
	}
	for _, address := range to.To {
		if !r.conns.SMTP.Allows(address) {
			return fmt.Errorf("mail may not go to %s: its domain is none of smtp.recipients in the connections file", address)
		}
	}
	return nil
}

func (r *Receivers) tellEmail(ctx context.Context, to *Email, m *Message) webhook.Outcome {
	if err := r.checkEmail(to); err != nil {
		return webhook.Outcome{Why: err.Error()} // the operator's file may be mended
	}
	letter, err := r.letter(to, m)
	if err != nil {
		return webhook.Outcome{GiveUp: true, Why: r.conns.Redact(err.Error())}
	}
	client, err := r.mailer()
	if err == nil {
		err = client.DialAndSendWithContext(ctx, letter)
	}
	if err == nil {
		return webhook.Outcome{Delivered: true}
	}
	server := net.JoinHostPort(r.conns.SMTP.Host, strconv.Itoa(r.conns.SMTP.Port))
	if slow, ok := errors.AsType[net.Error](err); ctx.Err() != nil || ok && slow.Timeout() {
		return webhook.Outcome{Why: server + ": it did not answer in time"}
	}
	if refused, ok := errors.AsType[*mail.SendError](err); !ok || refused.ErrorCode() == 0 {
		return webhook.Outcome{Why: server + ": no connection, no encryption, or no login"}
	}
	return webhook.Outcome{Why: server + ": it does not take the message", Said: r.sender.Quoted([]byte(err.Error()))}
}

// letter is a message as mail: plain text, with an id that is the same for each attempt.
func (r *Receivers) letter(to *Email, m *Message) (*mail.Msg, error) {
	letter := mail.NewMsg(mail.WithNoDefaultUserAgent())
	if err := errors.Join(letter.From(r.conns.SMTP.From), letter.To(to.To...)); err != nil {
		return nil, err
	}
	from, err := netmail.ParseAddress(r.conns.SMTP.From)
	if err != nil {
		return nil, err
	}
	_, domain, _ := strings.Cut(from.Address, "@")
	letter.SetMessageIDWithValue(m.ID + "@" + domain)
	letter.SetDateWithValue(m.At)
	letter.SetGenHeader("Auto-Submitted", "auto-generated") // nobody is to answer that he is away
	letter.Subject(m.heading())
	text := m.Text
	if m.Link != "" {
		text += "\n" + m.Link + "\n"
	}
	letter.SetBodyString(mail.TypeTextPlain, text+"\n-- \nTranche, alert "+m.Alert+"\n")
	return letter, nil
}

func (r *Receivers) mailer() (*mail.Client, error) {
	s := r.conns.SMTP
	options := []mail.Option{mail.WithPort(s.Port), mail.WithTimeout(r.timeout), mail.WithTLSConfig(&tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: s.Host, RootCAs: s.RootCAs,
	})}
	switch s.TLS {
	case connections.SMTPTLS:
		options = append(options, mail.WithSSL())
	case connections.SMTPPlain:
		options = append(options, mail.WithTLSPolicy(mail.NoTLS))
	default:
		options = append(options, mail.WithTLSPolicy(mail.TLSMandatory))
	}
	if s.Username != "" {
		password, err := s.Password()
		if err != nil {
			return nil, err
		}
		login := mail.SMTPAuthAutoDiscover
		if s.TLS == connections.SMTPPlain { // a server of this machine
			login = mail.SMTPAuthPlainNoEnc
		}
		options = append(options, mail.WithSMTPAuth(login), mail.WithUsername(s.Username), mail.WithPassword(password))
	}
	return mail.NewClient(s.Host, options...)
}
