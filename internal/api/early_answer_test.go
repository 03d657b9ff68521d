package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// An answer that does not need the body comes before the body has ended: its sender may be waiting for just that.
func TestAnAnswerDoesNotWaitForTheBody(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	b.Server.LetStall(time.Hour) // so that an answer that waits for the body never comes
	for name, c := range map[string]struct {
		code                     int
		method, path, kind, body string
		header, value            string
	}{
		"start, unknown parameter": {code: 422, method: "POST", path: "/runs?colour=red", kind: "text/csv", body: "id\n1\n"},
		"start, bad format":        {code: 422, method: "POST", path: "/runs?format=x", kind: "text/csv", body: "id\n1\n"},
		"start, bad items": {code: 422, method: "POST", path: "/runs?endpoint=echo", kind: "text/csv",
			body: "id,name\n1\n" + strings.Repeat("2,a\n", 100_000)},
		"plan, unknown parameter": {code: 422, method: "POST", path: "/plans?colour=red", body: "steps:\n"},
		"rerun, no object":        {code: 422, method: "POST", path: "/runs/it/rerun", kind: "application/json", body: "[1,"},
		"nowhere":                 {code: 404, method: "POST", path: "/nowhere", body: "x"},
		"another method":          {code: 405, method: "POST", path: "/audit", body: "x"},
		"delete":                  {code: 404, method: "DELETE", path: "/plans/nope", body: "x"},
		"look":                    {code: 200, method: "GET", path: "/runs", body: "x"},
		"another origin": {code: 403, method: "POST", path: "/runs", body: "x", header: "Origin",
			value: "https://evil.example"},
		"another host": {code: 403, method: "POST", path: "/runs", body: "x", header: "Host", value: "evil.example"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent, feed := io.Pipe()
			go func() { _, _ = io.WriteString(feed, c.body) }() // and no more, but it has not ended
			defer func() { _ = sent.Close() }()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			req := testenv.Must(http.NewRequestWithContext(ctx, c.method, b.URL+api.Prefix+c.path, sent))(t)
			req.Header.Set("Content-Type", c.kind)
			if c.header == "Host" {
				req.Host = c.value
			} else if c.header != "" {
				req.Header.Set(c.header, c.value)
			}
			answer, err := http.DefaultTransport.RoundTrip(req)
			testenv.NoError(t, err)
			defer func() { _ = answer.Body.Close() }()
			if answer.StatusCode != c.code {
				t.Errorf("the answer is %d; want %d", answer.StatusCode, c.code)
			}
		})
	}
}

// What is too large is answered, not reset, however much of it has been sent.
func TestALargeBodyIsAnswered(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	large := `{"reason":"` + strings.Repeat("x", 17<<20) + `"}`
	for _, path := range []string{"/runs/it/pause", "/plans"} {
		conn := testenv.Must((&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(b.URL, "http://")))(t)
		t.Cleanup(func() { _ = conn.Close() })
		_, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
			"Content-Length: %d\r\n\r\n%s", api.Prefix+path, len(large), large) // all of it, before the answer is read
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		status, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(status, " 413 ") {
			t.Errorf("%s: %q, %v", path, status, err)
		}
	}
}

// Other items under the same key are refused, however many there are, and the connection is not reset.
func TestAReplayWithOtherItemsIsRefused(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Over(apitest.NodeOf(b.Engine), testenv.Conn(t, testenv.NATS(t)), api.Config{ReadTimeout: 2 * time.Minute})
	b.Start("idempotency_key=k")
	code, text := b.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&idempotency_key=k",
		strings.NewReader(apitest.Three+strings.Repeat("9,no one reads this\n", 1<<18)))
	if code != http.StatusConflict || !strings.Contains(string(text), "with other content: the items") {
		t.Errorf("a replay: %d %s", code, text)
	}
}
