package alerts_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/alert"
	store "github.com/tranchehq/tranche/workqueue/health"
)

// mailServer speaks SMTP as far as a client needs it, and does to a connection what behave says when it comes.
type mailServer struct {
	net.Listener

	served sync.WaitGroup
	stop   chan struct{}
	asked  chan struct{} // has one for each talk that it hangs in

	mu      sync.Mutex
	behave  string // "", hang, refuse, busy, no, some, stall, drop
	letters []string
	to      []string
	login   string
}

func newMailServer(t *testing.T) *mailServer {
	t.Helper()
	return serveMail(t, testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t))
}

func serveMail(t *testing.T, listener net.Listener) *mailServer {
	t.Helper()
	s := &mailServer{Listener: listener, stop: make(chan struct{}), asked: make(chan struct{}, 1)}
	s.served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			what := s.behave
			s.mu.Unlock()
			s.served.Go(func() { s.serve(conn, what) })
		}
	})
	t.Cleanup(func() {
		close(s.stop)
		_ = listener.Close()
		s.served.Wait()
	})
	return s
}

func (s *mailServer) serve(conn net.Conn, what string) {
	defer func() { _ = conn.Close() }()
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(conn, format+"\r\n", args...) }
	switch what {
	case "hang":
		<-s.stop
		return
	case "refuse":
		say("554 no service here")
		return
	}
	say("220 mail.bank.example ESMTP")
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		line := lines.Text()
		switch verb := strings.ToUpper(strings.SplitN(line, " ", 2)[0]); {
		case verb == "EHLO":
			say("250-mail.bank.example")
			say("250 AUTH PLAIN")
		case verb == "AUTH":
			s.mu.Lock()
			plain, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(line, "AUTH PLAIN "))
			s.login = strings.ReplaceAll(string(plain), "\x00", " ")
			s.mu.Unlock()
			say("235 welcome")
		case verb == "RCPT" && what == "busy":
			say("451 try again later, %s", mailSecret)
		case verb == "RCPT" && what == "stall":
			s.asked <- struct{}{}
			<-s.stop
			return
		case verb == "RCPT" && (what == "no" || what == "some" && strings.Contains(line, "ann@")):
			say("550 there is no one of that name")
		case verb == "RCPT":
			s.mu.Lock()
			s.to = append(s.to, line)
			s.mu.Unlock()
			say("250 ok")
		case verb == "DATA":
			say("354 go on")
			var letter strings.Builder
			for lines.Scan() && lines.Text() != "." {
				letter.WriteString(lines.Text() + "\n")
			}
			s.mu.Lock()
			s.letters = append(s.letters, letter.String())
			s.mu.Unlock()
			say("250 taken")
			if what == "drop" {
				return
			}
		case verb == "QUIT":
			say("221 bye")
			return
		default:
			say("250 ok")
		}
	}
}

func (s *mailServer) taken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.letters
}

func (s *mailServer) does(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behave = what
}

const mailRule = "when: {health: warning}\nto: {email: {to: [ops@bank.example, ann@bank.example]}}\n"

// A server that hangs, refuses, puts off and then takes a letter has it once, under the id that every attempt had.
func TestMail(t *testing.T) {
	t.Parallel()
	server := newMailServer(t)
	b := setup(t)
	b.operator(server.Addr().String())
	b.apply("r", mailRule)
	within := func(timeout time.Duration) *alerts.LeaderTask {
		return b.task(func(c *alerts.Config, w *alerts.TaskConfig) { c.Timeout, w.FirstRetry = timeout, time.Hour })
	}
	impatient, d, lease := within(50*time.Millisecond), within(time.Minute), b.lease()
	b.says(condition("e", store.Critical))
	b.look(d, lease)
	server.does("hang")
	b.send(impatient, lease)
	testenv.Has(t, b.alert("r").Error, "did not answer before its timeout", "its trouble")
	for _, c := range []struct{ behave, want string }{
		{"refuse", "no connection, no encryption, or no login"}, {"busy", "does not take the message\n"},
		{"no", "no one of that name"},
	} {
		server.does(c.behave)
		b.exec(`UPDATE alert SET next_at = tranche_now()`)
		b.send(d, lease)
		if got := b.alert("r"); !strings.Contains(got.Error, c.want) || strings.Contains(got.Error, mailSecret) {
			t.Errorf("its trouble is %q; want %q, and no password", got.Error, c.want)
		}
	}
	server.does("")
	b.exec(`UPDATE alert SET next_at = tranche_now()`)
	b.send(d, lease)
	got := b.messages("r")
	if len(got) != 1 || got[0].State != alert.MessageDelivered || got[0].Attempts != 5 {
		t.Fatalf("%+v", got)
	}
	letters := server.taken()
	if len(letters) != 1 || len(server.to) != 2 || server.login != " tranche "+mailSecret {
		t.Fatalf("%d letters, to %q, by %q", len(letters), server.to, server.login)
	}
	for _, part := range []string{
		"Message-ID: <" + got[0].ID.String() + "@bank.example>", "Subject: [critical] No service listens on endpoint e",
		"Auto-Submitted: auto-generated", "Waiting on", "https://tranche.bank.example/endpoint",
	} {
		testenv.Has(t, letters[0], part, "the letter")
	}
}

// Who is refused keeps no one else from having the letter, and is named. A server that says no good-bye has taken it.
func TestMailToSome(t *testing.T) {
	t.Parallel()
	for behave, want := range map[string]struct {
		to    int
		names string
	}{"some": {1, "it takes nothing for ann@bank.example\n550 \"there is no one of that name\""}, "drop": {2, ""}} {
		t.Run(behave, func(t *testing.T) {
			t.Parallel()
			server := newMailServer(t)
			b := setup(t)
			b.operator(server.Addr().String())
			b.apply("r", mailRule)
			d := b.task(func(c *alerts.Config, _ *alerts.TaskConfig) { c.Timeout = time.Minute })
			lease := b.lease()
			b.says(condition("e", store.Critical))
			b.look(d, lease)
			server.does(behave)
			b.send(d, lease)
			got, rule := b.messages("r"), b.alert("r")
			if got[0].State != alert.MessageDelivered || len(server.taken()) != 1 || len(server.to) != want.to ||
				!strings.Contains(rule.Error, want.names) || want.names == "" && rule.Error != "" ||
				got[0].Error != rule.Error || rule.FailingSince != nil {
				t.Errorf("%+v; to %q; %+v", got[0], server.to, rule)
			}
		})
	}
}

// A talk ends when its context does, wherever it stands.
func TestMailIsCutOff(t *testing.T) {
	t.Parallel()
	server := newMailServer(t)
	server.does("stall")
	b := setup(t)
	b.operator(server.Addr().String())
	b.apply("r", mailRule)
	d := b.task(func(c *alerts.Config, _ *alerts.TaskConfig) { c.Timeout = time.Hour })
	lease := b.lease()
	b.says(condition("e", store.Critical))
	b.look(d, lease)
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan error, 1)
	go func() {
		_, err := d.Send(ctx, lease)
		sent <- err
	}()
	<-server.asked
	cancel()
	select {
	case err := <-sent:
		testenv.Is(t, err, context.Canceled, "the error")
	case <-time.After(soon):
		t.Fatal("it goes on")
	}
}

// A server that speaks TLS from the first byte is logged in to as well.
func TestMailByTLS(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(nil) // it has a certificate
	t.Cleanup(web.Close)
	listener := testenv.Must(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: web.TLS.Certificates}))(t)
	server := serveMail(t, listener)
	b := setup(t)
	b.operator(server.Addr().String())
	b.conns.SMTP.TLS, b.conns.SMTP.RootCAs = connections.SMTPTLS, x509.NewCertPool()
	b.conns.SMTP.RootCAs.AddCert(web.Certificate())
	b.apply("r", mailRule)
	d := b.task(func(c *alerts.Config, _ *alerts.TaskConfig) { c.Timeout = time.Minute })
	lease := b.lease()
	b.says(condition("e", store.Critical))
	b.turn(d, lease)
	if got := b.alert("r"); len(server.taken()) != 1 || server.login != " tranche "+mailSecret {
		t.Errorf("%d letters, by %q: %+v", len(server.taken()), server.login, got)
	}
}
