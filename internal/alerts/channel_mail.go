package alerts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	netmail "net/mail"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/wneessen/go-mail"
	"github.com/wneessen/go-mail/smtp"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/connections"
)

type email struct {
	To []string `json:"to" min:"1" max:"20"`
}

func (e *email) check() (field string, err error) {
	if len(e.To) == 0 {
		return "", errors.New("it has no to: name the addresses")
	}
	for i, to := range e.To {
		if a, err := netmail.ParseAddress(to); err != nil || a.Name != "" || a.Address != to {
			return fmt.Sprintf("to[%d]", i), fmt.Errorf("want an address like ops@bank.example; this is %.80q", to)
		}
	}
	return "", nil
}

var errNoSMTP = errors.New("this node has no server that takes mail (smtp in serve --connections FILE)")

func (e *email) reachable(r *Receivers) (field string, err error) {
	if r.conns.SMTP == nil {
		return "", errNoSMTP
	}
	for _, to := range e.To {
		if !r.conns.SMTP.Allows(to) {
			return "", fmt.Errorf("mail may not go to %s: its domain is none of smtp.recipients in the connections file", to)
		}
	}
	return "", nil
}

func (e *email) tell(ctx context.Context, r *Receivers, m *Message) httpfetch.Delivery {
	if _, err := e.reachable(r); err != nil {
		return r.unreachable(err)
	}
	letter, err := r.letter(e.To, m)
	if err != nil {
		return r.unwritable(err)
	}
	server := net.JoinHostPort(r.conns.SMTP.Host, strconv.Itoa(r.conns.SMTP.Port))
	refused, err := r.mail(ctx, letter)
	_, said := errors.AsType[*textproto.Error](err)
	slow, ok := errors.AsType[net.Error](err)
	switch {
	case err == nil && len(refused) == 0:
		return httpfetch.Delivery{Delivered: true}
	case err == nil:
		var names []string
		for _, no := range refused {
			names = append(names, no.address)
		}
		return httpfetch.Delivery{Delivered: true, Why: server + ": it takes nothing for " + strings.Join(names, ", "),
			Said: r.sender.Quoted([]byte(refused[0].err.Error()))}
	case ctx.Err() != nil || ok && slow.Timeout():
		return httpfetch.Delivery{Why: server + ": it did not answer before its timeout"}
	case errors.Is(err, errNoTalk) || !said:
		return httpfetch.Delivery{Why: server + ": no connection, no encryption, or no login"}
	}
	return httpfetch.Delivery{Why: server + ": it does not take the message", Said: r.sender.Quoted([]byte(err.Error()))}
}

type refusal struct {
	address string
	err     error
}

var errNoTalk = errors.New("the server is not ready to take a message")

// mail sends a letter to all recipients that the server accepts; the error means that it accepts none. Once the
// server has confirmed the delivery, errors of QUIT are ignored.
func (r *Receivers) mail(ctx context.Context, letter *mail.Msg) (refused []refusal, err error) {
	from, err := letter.GetSender(false)
	if err != nil {
		return nil, err
	}
	to, err := letter.GetRecipients()
	if err != nil {
		return nil, err
	}
	client, err := r.mailer(ctx)
	if err != nil {
		return nil, errors.Join(errNoTalk, err)
	}
	talk, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return nil, errors.Join(errNoTalk, err)
	}
	if err := talk.Mail(from); err != nil {
		return nil, err
	}
	for _, address := range to {
		err := talk.Rcpt(address)
		if _, said := errors.AsType[*textproto.Error](err); err != nil && !said {
			return nil, err
		}
		if err != nil {
			refused = append(refused, refusal{strings.Trim(address, "<>"), err})
		}
	}
	if len(refused) == len(to) {
		return nil, refused[0].err
	}
	if err := write(talk, letter); err != nil {
		return nil, err
	}
	_ = talk.Quit()
	return refused, nil
}

func write(talk *smtp.Client, letter *mail.Msg) error {
	w, err := talk.Data()
	if err != nil {
		return err
	}
	if _, err := letter.WriteTo(w); err != nil {
		return err // unfinished, so the server drops it
	}
	return w.Close()
}

func (r *Receivers) letter(to []string, m *Message) (*mail.Msg, error) {
	letter := mail.NewMsg(mail.WithNoDefaultUserAgent())
	if err := errors.Join(letter.From(r.conns.SMTP.From), letter.To(to...)); err != nil {
		return nil, err
	}
	from, err := netmail.ParseAddress(r.conns.SMTP.From)
	if err != nil {
		return nil, err
	}
	_, domain, _ := strings.Cut(from.Address, "@")
	letter.SetMessageIDWithValue(m.ID + "@" + domain)
	letter.SetDateWithValue(m.At)
	letter.SetGenHeader("Auto-Submitted", "auto-generated") // prevents out-of-office replies
	letter.Subject(m.heading())
	text := m.Text
	if m.Link != "" {
		text += "\n" + m.Link + "\n"
	}
	letter.SetBodyString(mail.TypeTextPlain, text+"\n-- \nTranche, alert "+m.Alert+"\n")
	return letter, nil
}

// mailer connects to the server. The end of ctx closes the connection.
func (r *Receivers) mailer(ctx context.Context) (*mail.Client, error) {
	s := r.conns.SMTP
	secure := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.Host, RootCAs: s.RootCAs}
	dial := (&net.Dialer{}).DialContext
	if s.TLS == connections.SMTPTLS {
		dial = (&tls.Dialer{Config: secure}).DialContext
	}
	options := []mail.Option{mail.WithPort(s.Port), mail.WithTimeout(r.timeout), mail.WithTLSConfig(secure),
		mail.WithDialContextFunc(func(dialing context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(dialing, network, address)
			if err == nil {
				context.AfterFunc(ctx, func() { _ = conn.Close() })
			}
			return conn, err
		})}
	switch s.TLS {
	case connections.SMTPTLS: // already encrypted, unknown to WithSSL
		options = append(options, mail.WithTLSPolicy(mail.TLSOpportunistic))
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
		if s.TLS == connections.SMTPPlain { // on this machine
			login = mail.SMTPAuthPlainNoEnc
		}
		options = append(options, mail.WithSMTPAuth(login), mail.WithUsername(s.Username), mail.WithPassword(password))
	}
	return mail.NewClient(s.Host, options...)
}
