package apitest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// request sends a request, and returns the answer with an unread body.
func (b *Bench) request(
	ctx context.Context, method, url string, body io.Reader, header ...string,
) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	return carried(b, req)
}

// exchange is request for the test's goroutine.
func exchange(
	ctx context.Context, b *Bench, method, url string, body io.Reader, header ...string,
) *http.Response {
	b.Helper()
	return testenv.Must(b.request(ctx, method, url, body, header...))(b)
}

// Head is an answer without its body.
type Head struct {
	StatusCode int
	Header     http.Header
}

func (h *Head) Cookies() []*http.Cookie { return (&http.Response{Header: h.Header}).Cookies() }

// Send returns an answer without its body, which may be endless.
func (b *Bench) Send(method, path, body string, header ...string) *Head {
	b.Helper()
	answer := exchange(b.Context(), b, method, b.URL+path, strings.NewReader(body), header...)
	_ = answer.Body.Close() // it is not read
	return &Head{answer.StatusCode, answer.Header}
}

// Get requests a path of the API and returns the whole answer.
func (b *Bench) Get(path string, header ...string) (Head, string) {
	b.Helper()
	return whole(b, http.MethodGet, api.Prefix+path, nil, header...)
}

// SendKeyed posts with an idempotency key.
func (b *Bench) SendKeyed(key, path string, body io.Reader, header ...string) (Head, string) {
	b.Helper()
	return whole(b, http.MethodPost, api.Prefix+path, body, append(header, apicore.IdempotencyHeader, key)...)
}

func whole(b *Bench, method, path string, body io.Reader, header ...string) (Head, string) {
	b.Helper()
	answer := exchange(b.Context(), b, method, b.URL+path, body, header...)
	defer func() { _ = answer.Body.Close() }()
	return Head{answer.StatusCode, answer.Header}, string(testenv.Must(io.ReadAll(answer.Body))(b))
}

// JSON sends a request as ann, wants a status, and parses the answer into out unless it is nil.
func (b *Bench) JSON(method, path, body string, status int, out any, header ...string) string {
	b.Helper()
	header = append([]string{"Content-Type", ContentTypeOf(body), apicore.ActorHeader, "ann"}, header...)
	code, text := b.Ask(method, api.Prefix+path, strings.NewReader(body), header...)
	testenv.MustSame(b, code, status, "%s %s: %s", method, path, text)
	if out != nil {
		if err := json.Unmarshal(text, out); err != nil {
			b.Fatalf("%s %s: %v in %s", method, path, err, text)
		}
	}
	return string(text)
}

func ContentTypeOf(text string) string {
	if text == "" || strings.HasPrefix(text, "{") {
		return "application/json"
	}
	return "application/yaml"
}

func (b *Bench) Read(path string, out any) {
	b.Helper()
	b.JSON(http.MethodGet, path, "", http.StatusOK, out)
}

func (b *Bench) Post(path, text string, out any) {
	b.Helper()
	b.JSON(http.MethodPost, path, text, http.StatusOK, out)
}

func Read[T any](b *Bench, path string) (out T) {
	b.Helper()
	b.Read(path, &out)
	return out
}

func Change[T any](b *Bench, path, body string) (out T) {
	b.Helper()
	b.Post(path, body, &out)
	return out
}

func (b *Bench) Tracked(method, path, body string, status int, into any) {
	b.Helper()
	b.JSON(method, "/trackers"+path, body, status, into)
}

func (b *Bench) Apply(plan, query string) (out workqueue.AppliedDocument) {
	b.Helper()
	b.Post("/plans?"+query, plan, &out)
	return out
}

func (b *Bench) Schedule(path, text string) (int, string) {
	b.Helper()
	code, body := b.Ask(http.MethodPost, api.Prefix+path, strings.NewReader(text), "Content-Type", "application/yaml",
		apicore.ActorHeader, "ann")
	return code, string(body)
}

// Want sends a POST, and wants a status and texts in the answer.
func (b *Bench) Want(path, body string, status int, parts ...string) []byte {
	b.Helper()
	return b.wants(path, body, status, parts)
}

// Says posts JSON as ann, and wants a status and texts in the answer.
func (b *Bench) Says(status int, path, body string, parts ...string) {
	b.Helper()
	b.wants(path, body, status, parts, "Content-Type", "application/json", apicore.ActorHeader, "ann")
}

func (b *Bench) wants(path, body string, status int, parts []string, header ...string) []byte {
	b.Helper()
	code, text := b.Ask(http.MethodPost, api.Prefix+path, strings.NewReader(body), header...)
	testenv.Same(b, code, status, "POST %s: %s", path, text)
	for _, part := range parts {
		testenv.Has(b, string(text), part, "POST %s", path)
	}
	return text
}

// Sent posts with an idempotency key, and checks the answer.
func (b *Bench) Sent(status int, replayed bool, want, key, path, body string, header ...string) string {
	b.Helper()
	answer, text := b.SendKeyed(key, path, strings.NewReader(body), header...)
	if answer.StatusCode != status || !strings.Contains(text, want) ||
		(answer.Header.Get(apicore.ReplayedHeader) == "true") != replayed {
		b.Errorf("%s %s: %d %v %s; want %d, replayed %t, %s", key, path, answer.StatusCode, answer.Header, text, status,
			replayed, want)
	}
	return text
}

// Asked returns the status and the problem of an answer, and its text.
func (b *Bench) Asked(path, body string, header ...string) (int, string, []byte) {
	b.Helper()
	code, text := b.Ask(http.MethodPost, api.Prefix+path, strings.NewReader(body), header...)
	var p Problem
	if code >= 400 && json.Unmarshal(text, &p) != nil {
		b.Fatalf("%s: %s", path, text)
	}
	return code, p.Detail, text
}

func (b *Bench) Number(query string, args ...any) (n int) {
	b.Helper()
	testenv.NoError(b, b.Pool.QueryRow(b.Context(), query, args...).Scan(&n))
	return n
}

func (b *Bench) Exec(sql string, args ...any) {
	b.Helper()
	testenv.Must(b.Pool.Exec(b.Context(), sql, args...))(b)
}
