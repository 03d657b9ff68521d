package alerts_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/workqueue/alert"
)

// mailServer speaks SMTP as far as a client needs it, and does to each connection what behave says.
type mailServer struct {
	net.Listener

	behave func(connection int) string // "", hang, refuse, busy, no
	served sync.WaitGroup
	stop   chan struct{}

	mu      sync.Mutex
	conns   int
	letters []string
	to      []string
	login   string
}

func newMailServer(t *testing.T, behave func(connection int) string) *mailServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &mailServer{Listener: listener, behave: behave, stop: make(chan struct{})}
	s.served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns++
			what := s.behave(s.conns)
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
		case verb == "RCPT" && what == "no":
			say("550 there is nobody of that name")
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

// A server that hangs, refuses, puts off and then takes a letter has it once, under the id that every attempt had.
func TestMail(t *testing.T) {
	t.Parallel()
	behave := []string{"hang", "refuse", "busy", "no"}
	server := newMailServer(t, func(n int) string {
		if n <= len(behave) {
			return behave[n-1]
		}
		return ""
	})
	b := setup(t)
	b.operator(server.Addr().String())
	b.apply("r", "when: {health: warning}\nto: {email: {to: [ops@bank.example, ann@bank.example]}}\n")
	d := b.duty(func(c *alerts.Config, w *alerts.DutyConfig) { c.Timeout, w.FirstRetry = time.Second, time.Hour })
	lease := b.lease()
	b.says(condition("e", health.Critical))
	b.look(d, lease)
	for _, want := range []string{
		"did not answer in time", "no connection, no encryption, or no login", "does not take the message\n",
		"nobody of that name",
	} {
		b.exec(`UPDATE alert SET next_at = now()`)
		b.send(d, lease)
		if got := b.alert("r"); !strings.Contains(got.Error, want) || strings.Contains(got.Error, mailSecret) {
			t.Errorf("its trouble is %q; want %q, and no password", got.Error, want)
		}
	}
	b.exec(`UPDATE alert SET next_at = now()`)
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
		"Message-ID: <" + got[0].ID.String() + "@bank.example>", "Subject: [critical] Nobody listens on endpoint e",
		"Auto-Submitted: auto-generated", "Whose turn it is", "https://tranche.bank.example/endpoint",
	} {
		if !strings.Contains(letters[0], part) {
			t.Errorf("the letter lacks %q:\n%s", part, letters[0])
		}
	}
}
