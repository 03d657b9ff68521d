package alerts

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	netmail "net/mail"
	"net/textproto"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wneessen/go-mail"
	"github.com/wneessen/go-mail/smtp"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/alert"
)

const (
	// sendLook is how often the leader looks for messages that are due.
	sendLook = time.Second
	// attemptsAtOnce is how many attempts are under way; of each rule there is one.
	attemptsAtOnce = 128
	// attemptHold is when an attempt is made again whose leader died before it could note what came of it.
	attemptHold = 30 * time.Second
	// firstRetry is the pause after the first attempt that failed; it doubles up to longestRetry, and a Retry-After
	// makes it longer up to there.
	firstRetry   = 5 * time.Second
	longestRetry = 10 * time.Minute
	// messagePatience is how long a message is tried before it is given up, and messageAttempts how often at the least.
	// What holds then is told anew.
	messagePatience = 24 * time.Hour
	messageAttempts = 12
)

// Send makes an attempt at everything that is due, until nothing is. Attempts are independent of each other: a receiver
// that hangs keeps none but its own rule's messages waiting. What comes of an attempt is noted under the lease, and so
// is that it is made. Send returns when all of them have ended, after an error too.
func (d *Duty) Send(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	under := map[string]bool{} // the rules that have one under way
	ended := make(chan ended, attemptsAtOnce)
	look := time.NewTicker(sendLook)
	defer look.Stop()
	for {
		if ctx.Err() == nil { // what could not be claimed is claimed at the next look, however long one hangs
			if failed := d.begin(ctx, lease, under, ended); err == nil {
				err = failed
			}
		}
		if len(under) == 0 {
			return sendLook, err
		}
		select {
		case e := <-ended:
			delete(under, e.rule)
			if err == nil {
				err = e.err
			}
		case <-look.C:
		}
	}
}

type ended struct {
	rule string
	err  error // what came of it could not be noted
}

func (d *Duty) begin(ctx context.Context, lease workqueue.Lease, under map[string]bool, done chan<- ended) error {
	room := attemptsAtOnce - len(under)
	if room <= 0 {
		return nil
	}
	due, err := d.cfg.Store.Claim(ctx, lease, slices.Collect(maps.Keys(under)), room, d.hold())
	if err != nil {
		return err
	}
	for i := range due {
		a := &due[i]
		under[a.Alert] = true
		go func() { done <- ended{a.Alert, d.survive(a, func() error { return d.attempt(ctx, lease, a) })} }()
	}
	return nil
}

func (d *Duty) hold() time.Duration { return attemptHold + d.cfg.Receivers.timeout }

// survive makes a panic of an attempt an error of the duty: the recover of whoever runs that is in another goroutine.
func (d *Duty) survive(a *alert.Attempt, attempt func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			d.log.Error("an attempt at a message panicked", zap.String("alert", a.Alert), zap.Any("panic", p),
				zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("an attempt at a message of alert %s: panic: %v", a.Alert, p)
		}
	}()
	return attempt()
}

// attempt sends a message and notes what came of it.
func (d *Duty) attempt(ctx context.Context, lease workqueue.Lease, a *alert.Attempt) error {
	came := d.tell(ctx, a)
	if ctx.Err() != nil {
		return ctx.Err() // it was cut off, and is tried again by whoever leads then
	}
	log := d.log.With(zap.String("alert", a.Alert), zap.Stringer("message", a.Message), zap.Int("attempt", a.Number))
	if came.Delivered {
		noted, err := d.cfg.Store.Delivered(ctx, lease, a, came.Reason())
		if noted {
			log.Debug("message delivered")
		}
		return err
	}
	retry := httpfetch.Retry{First: d.cfg.FirstRetry, Longest: longestRetry}
	if retry.First <= 0 {
		retry.First = firstRetry
	}
	failure := alert.Failure{Reason: came.Reason(), Pause: retry.In(a.Failures+1, came.Wait),
		GiveUp: came.GiveUp || a.Test || a.Age >= messagePatience && a.Number >= messageAttempts}
	noted, err := d.cfg.Store.Failed(ctx, lease, a, failure)
	if noted && (a.Failures == 0 || failure.GiveUp) {
		log.Warn("a receiver could not be told", zap.String("why", came.Why), zap.Bool("given_up", failure.GiveUp))
	}
	return err
}

func (d *Duty) tell(ctx context.Context, a *alert.Attempt) httpfetch.Delivery {
	spec, err := readSpec(a.Alert, a.Spec)
	if err != nil {
		return httpfetch.Delivery{Why: err.Error()}
	}
	m, err := read(a, d.cfg.Receivers.public)
	if err != nil {
		return httpfetch.Delivery{GiveUp: true, Why: err.Error()}
	}
	return d.cfg.Receivers.tell(ctx, &spec.To, m)
}

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

func (r *Receivers) tellEmail(ctx context.Context, to *Email, m *Message) httpfetch.Delivery {
	if err := r.checkEmail(to); err != nil {
		return httpfetch.Delivery{Why: err.Error()} // the operator's file may be mended
	}
	letter, err := r.letter(to, m)
	if err != nil {
		return httpfetch.Delivery{GiveUp: true, Why: r.conns.Redact(err.Error())}
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
		return httpfetch.Delivery{Why: server + ": it did not answer in time"}
	case errors.Is(err, errNoTalk) || !said:
		return httpfetch.Delivery{Why: server + ": no connection, no encryption, or no login"}
	}
	return httpfetch.Delivery{Why: server + ": it does not take the message", Said: r.sender.Quoted([]byte(err.Error()))}
}

// refusal is why the server takes nothing for an address.
type refusal struct {
	address string
	err     error
}

var errNoTalk = errors.New("the server is not ready to take a message")

// mail hands a letter to the server, for all that the server takes it for; the error says that this is nobody. It was
// delivered when the server has said so: what comes of the good-bye does not matter.
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
		return err // it is not ended: the server has nothing
	}
	return w.Close()
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

// mailer talks to the server until ctx ends, which closes the connection, whatever it waits for.
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
	case connections.SMTPTLS: // it is encrypted already, of which WithSSL would know nothing
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
		if s.TLS == connections.SMTPPlain { // a server of this machine
			login = mail.SMTPAuthPlainNoEnc
		}
		options = append(options, mail.WithSMTPAuth(login), mail.WithUsername(s.Username), mail.WithPassword(password))
	}
	return mail.NewClient(s.Host, options...)
}

const (
	// maxOutput bounds what is kept of what a program says.
	maxOutput = 4 << 10
	// afterKill is how long the output of a program that has ended, or was killed, is waited for.
	afterKill = time.Second
)

// program returns the path of a program that the operator allows.
func (r *Receivers) program(name string) (string, error) {
	if path, ok := r.programs[name]; ok {
		return path, nil
	}
	known := "it allows none"
	if len(r.programs) > 0 {
		known = "it allows " + strings.Join(slices.Sorted(maps.Keys(r.programs)), ", ")
	}
	return "", fmt.Errorf("this node runs no program %.64q; %s (serve --alert-program NAME=PATH)", name, known)
}

// tellProgram runs a program with the message as JSON on its standard input. There is no shell, there are no arguments,
// and of this process's environment, which may have secrets, it has PATH alone. It is killed with all that it has
// started when its time is over.
func (r *Receivers) tellProgram(ctx context.Context, name string, m *Message) httpfetch.Delivery {
	path, err := r.program(name)
	if err != nil {
		return httpfetch.Delivery{Why: err.Error()} // another node may allow it
	}
	input, err := json.Marshal(m)
	if err != nil {
		return httpfetch.Delivery{GiveUp: true, Why: err.Error()}
	}
	said := &bounded{}
	cmd := exec.CommandContext(ctx, path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), said, said
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "TRANCHE_ALERT=" + m.Alert, "TRANCHE_ALERT_ID=" + m.ID,
		"TRANCHE_ALERT_STATUS=" + m.Status, "TRANCHE_ALERT_SEVERITY=" + string(m.Severity),
		"TRANCHE_ALERT_TITLE=" + strings.ReplaceAll(m.Title, "\x00", ""), "TRANCHE_ALERT_LINK=" + m.Link,
	}
	cmd.Dir = "/"
	withDescendants(cmd)
	cmd.WaitDelay = afterKill
	err = cmd.Run()
	switch ended := cmd.ProcessState; {
	case ended != nil && ended.Success():
		if err != nil { // it has left something behind that holds its output
			_ = cmd.Cancel() // which may have ended since
		}
		return httpfetch.Delivery{Delivered: true}
	case ctx.Err() != nil:
		return httpfetch.Delivery{Why: "program " + name + ": it did not end in time", Said: r.sender.Quoted(said.kept)}
	}
	return httpfetch.Delivery{Why: "program " + name + ": " + ending(err), Said: r.sender.Quoted(said.kept)}
}

// ending says how a program ended, without its path.
func ending(err error) string {
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		return ended.String()
	}
	return "it cannot be run"
}

// bounded keeps the beginning of what is written to it.
type bounded struct{ kept []byte }

func (b *bounded) Write(p []byte) (int, error) {
	b.kept = append(b.kept, p[:min(len(p), maxOutput-len(b.kept))]...)
	return len(p), nil
}
