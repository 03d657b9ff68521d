package apitest

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/health"
)

// carried sends a request. When the answer is that it was not to be learned in time who asks, on a machine that stood
// still, it is sent again.
func carried(b *Bench, req *http.Request) (*http.Response, error) {
	for deadline := time.Now().Add(longest); ; {
		answer, err := http.DefaultTransport.RoundTrip(req)
		if err != nil || !b.Gated || answer.StatusCode != http.StatusServiceUnavailable || time.Now().After(deadline) {
			return answer, err
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close() // it has been read
		if err != nil {
			return nil, err
		}
		answer.Body = io.NopCloser(bytes.NewReader(text))
		next := req.Clone(req.Context())
		switch {
		case !unlearnt(string(text)):
			return answer, nil
		case req.GetBody != nil:
			if next.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		case req.Body != nil && req.Body != http.NoBody:
			return answer, nil // there is no second one
		}
		b.Logf("%s %s is sent again: %s", req.Method, req.URL.Path, text)
		req = next
	}
}

// unlearnt says whether an answer tells that it was not to be learned who asks, or whether they may still.
func unlearnt(text string) bool {
	return strings.Contains(text, "PostgreSQL does not answer") || strings.Contains(text, "the request was broken off")
}

// Looked is what /health tells, once PostgreSQL answers within the little time that it has for that.
func Looked(b *Bench) (text []byte) {
	b.Helper()
	Eventually(b.T, "PostgreSQL answers", func() bool {
		code, answer := b.Ask(http.MethodGet, api.Prefix+"/health", nil)
		if code != http.StatusOK {
			b.Fatalf("%d %s", code, answer)
		}
		text = answer
		return !strings.Contains(string(text), `"kind":"`+string(health.Database)+`"`)
	})
	return text
}

// Ready asks whether the node is ready, until PostgreSQL answers within the little time that it has for that.
func Ready(b *Bench) (code int, text []byte) {
	b.Helper()
	Eventually(b.T, "PostgreSQL answers", func() bool {
		code, text = b.Ask(http.MethodGet, "/readyz", nil)
		return !strings.Contains(string(text), "PostgreSQL does not answer")
	})
	return code, text
}
