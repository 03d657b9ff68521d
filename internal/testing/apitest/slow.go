package apitest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	store "github.com/tranchehq/tranche/workqueue/health"
)

// Lock blocks readers of a table until undo is called. Each blocked reader holds a connection.
func (b *Bench) Lock(table string) (undo func()) {
	b.Helper()
	tx, err := testenv.Connect(b, b.Pool.Config().ConnString()).Begin(b.Context())
	if err == nil {
		_, err = tx.Exec(b.Context(), `LOCK TABLE `+pgx.Identifier{table}.Sanitize()+` IN ACCESS EXCLUSIVE MODE`)
	}
	testenv.NoError(b, err)
	return func() { _ = tx.Rollback(context.WithoutCancel(b.Context())) } // it also ends with the test
}

// Crowd sends many concurrent requests, and sends their answers.
func (b *Bench) Crowd(many int, path, secret string) <-chan *Head {
	answers := make(chan *Head, many)
	for range many {
		go func() {
			req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, b.URL+path, http.NoBody)
			if err != nil {
				b.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+secret)
			if answer, err := http.DefaultTransport.RoundTrip(req); err == nil {
				_ = answer.Body.Close() // unread answers are interrupted
				answers <- &Head{answer.StatusCode, answer.Header}
			}
		}()
	}
	return answers
}

// Until polls the database until a query returns true.
func (b *Bench) Until(what, sql string, args ...any) {
	b.Helper()
	Eventually(b.T, what, func() (yes bool) {
		testenv.NoError(b, b.Pool.QueryRow(b.Context(), sql, args...).Scan(&yes))
		return yes
	})
}

// Trickle sends a body in pieces, one after each pause, until there is an answer, and returns that.
func (b *Bench) Trickle(path, header, body string, piece int, pause time.Duration) (status int, text string) {
	b.Helper()
	conn := b.Stalled(path, header+fmt.Sprintf("Content-Length: %d", len(body)), "")
	answered := make(chan struct{})
	go func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for rest := body; rest != ""; {
			select {
			case <-tick.C:
			case <-answered:
				return
			}
			n := min(piece, len(rest))
			if _, err := io.WriteString(conn, rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
	}()
	defer close(answered)
	testenv.NoError(b, conn.SetReadDeadline(time.Now().Add(longest)))
	//nolint:bodyclose // it waits for the connection's end
	answer := testenv.Must(http.ReadResponse(bufio.NewReader(conn), nil))(b)
	var read json.RawMessage
	if err := json.NewDecoder(answer.Body).Decode(&read); err != nil { // the rest comes later
		b.Errorf("%s: the answer %d ends early after %q: %v", path, answer.StatusCode, read, err)
	}
	return answer.StatusCode, string(read)
}

const (
	// Silence is the read timeout for senders that are silent for longer.
	Silence = 2 * time.Second
	// Timeout is the read timeout for senders that are not silent, but may be as slow as the machine.
	Timeout = 5 * time.Second
	// longest exceeds the duration of anything that a test waits for, also on a stalled machine.
	longest = 2 * time.Minute
)

func Eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	testenv.Until(t, longest, what, holds)
}

// Stalled begins a request with a body, and sends only the beginning of it.
func (b *Bench) Stalled(path, size, begin string) net.Conn {
	b.Helper()
	host := strings.TrimPrefix(b.URL, "http://")
	c := testenv.Must(net.Dial("tcp", host))(b)
	b.Cleanup(func() { _ = c.Close() })
	kind := "Content-Type: application/json\r\n"
	if strings.Contains(size, "Content-Type") {
		kind = ""
	}
	testenv.Must(io.WriteString(c, "POST "+api.Prefix+path+" HTTP/1.1\r\nHost: "+host+
		"\r\n"+kind+size+"\r\n\r\n"+begin))(b)
	return c
}

// UseTLS sends requests by TLS, with a version of HTTP.
func (b *Bench) UseTLS(transport *http.Transport, at, name string, major int, secret string) {
	b.Helper()
	ask := func(method, path, kind string, body io.Reader) (int, string) {
		req := testenv.Must(http.NewRequestWithContext(b.Context(), method, at+api.Prefix+path, body))(b)
		req.Header.Set("Authorization", "Bearer "+secret)
		req.Header.Set("Content-Type", kind)
		answer := testenv.Must(transport.RoundTrip(req))(b) //nolint:bodyclose // closed in the next line
		defer func() { _ = answer.Body.Close() }()
		testenv.Same(b, answer.ProtoMajor, major, "%s by %s: the version of HTTP", path, name)
		if answer.Header.Get("Strict-Transport-Security") == "" {
			b.Errorf("%s by %s may be asked without TLS the next time", path, name)
		}
		return answer.StatusCode, string(testenv.Must(io.ReadAll(answer.Body))(b))
	}
	run := "of-" + strings.NewReplacer("/", "-", ".", "-").Replace(name)
	items := strings.NewReader(Three)
	if code, text := ask(http.MethodPost, "/runs?endpoint=echo&name="+run, "text/csv", items); code != 201 {
		b.Errorf("a start by %s: %d %s", name, code, text)
	}
	endless := io.MultiReader(strings.NewReader("id,name\n1,a\n1,b\n"), strings.NewReader(strings.Repeat("2,x\n", 1<<18)))
	if code, text := ask(http.MethodPost, "/runs?endpoint=echo", "text/csv", endless); code != 422 {
		b.Errorf("an upload with a mistake by %s: %d %s", name, code, text)
	}
	if code, text := ask(http.MethodGet, "/runs/"+run+"/export", "", nil); code != 200 || strings.Count(text, "\n") != 3 {
		b.Errorf("an export by %s: %d %s", name, code, text)
	}
	body := strings.NewReader(`{"token":"` + secret + `"}`)
	if code, text := ask(http.MethodPost, "/session", "application/json", body); code != 200 {
		b.Errorf("a login by %s: %d %s", name, code, text)
	}
}

// Unread sends a request, and reads as little of the answer as possible.
func (b *Bench) Unread(path, secret string) net.Conn {
	b.Helper()
	host := strings.TrimPrefix(b.URL, "http://")
	conn := testenv.Must(net.Dial("tcp", host))(b)
	b.Cleanup(func() { _ = conn.Close() })
	if tcp, ok := conn.(*net.TCPConn); !ok || tcp.SetReadBuffer(4096) != nil {
		b.Fatal("the buffer of the connection stays as it is")
	}
	testenv.Must(io.WriteString(conn, "GET "+api.Prefix+path+" HTTP/1.1\r\nHost: "+host+"\r\nAuthorization: Bearer "+
		secret+"\r\n\r\n"))(b)
	return conn
}

// Answered waits for the answer on a connection, without reading its body.
func (b *Bench) Answered(conn net.Conn) *Head {
	b.Helper()
	testenv.NoError(b, conn.SetReadDeadline(time.Now().Add(longest)))
	answer := testenv.Must(http.ReadResponse(bufio.NewReader(conn), nil))(b) //nolint:bodyclose // that would read all
	return &Head{answer.StatusCode, answer.Header}
}

// carried sends a request. It resends it if authentication timed out, as on a stalled machine.
func carried(b *Bench, req *http.Request) (*http.Response, error) {
	for deadline := time.Now().Add(longest); ; {
		answer, err := http.DefaultTransport.RoundTrip(req)
		if err != nil || !b.Gated || answer.StatusCode != http.StatusServiceUnavailable || time.Now().After(deadline) {
			return answer, err
		}
		read, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close() // it has been read
		if err != nil {
			return nil, err
		}
		answer.Body = io.NopCloser(bytes.NewReader(read))
		next, text := req.Clone(req.Context()), string(read)
		switch {
		case !strings.Contains(text, "PostgreSQL does not answer") && !strings.Contains(text, "the request was interrupted"):
			return answer, nil
		case req.GetBody != nil:
			if next.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		case req.Body != nil && req.Body != http.NoBody:
			return answer, nil // the body cannot be sent twice
		}
		b.Logf("%s %s is sent again: %s", req.Method, req.URL.Path, text)
		req = next
	}
}

// Looked returns the answer of /health, once PostgreSQL answers within its time limit.
func Looked(b *Bench) (text []byte) {
	b.Helper()
	Eventually(b.T, "PostgreSQL answers", func() bool {
		code, answer := b.Ask(http.MethodGet, api.Prefix+"/health", nil)
		testenv.MustSame(b, code, http.StatusOK, "%s", answer)
		text = answer
		return !strings.Contains(string(text), `"kind":"`+string(store.Database)+`"`)
	})
	return text
}

// Ready requests the node's readiness, once PostgreSQL answers within its time limit.
func Ready(b *Bench) (code int, text []byte) {
	b.Helper()
	Eventually(b.T, "PostgreSQL answers", func() bool {
		code, text = b.Ask(http.MethodGet, "/readyz", nil)
		return !strings.Contains(string(text), "PostgreSQL does not answer")
	})
	return code, text
}
