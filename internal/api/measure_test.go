package api_test

import (
	"context"
	"net/http"
	"strconv"
	"testing"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/health"
)

// measured hands on what it is told, while there is room for it.
type measured struct{ asked chan string }

func newMeasured() *measured { return &measured{make(chan string, 100)} }

func (*measured) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("tranche_up 1\n"))
}

func (*measured) Watch(func(context.Context) (*health.Report, error)) {}

func (m *measured) Asked(route, role string, code int) {
	select {
	case m.asked <- route + " " + role + " " + strconv.Itoa(code):
	default:
	}
}

// Requests are told apart by the pattern of their route, and by who asked; /metrics is for who may look.
func TestRequestsAreMeasured(t *testing.T) {
	t.Parallel()
	m := newMeasured()
	b := setup(t).lockedWith(api.Config{Metrics: m}, access.Config{})
	viewer := []string{"Authorization", "Bearer " + b.token("v", access.Viewer, 0).secret}
	for _, ask := range []struct {
		path    string
		headers []string
		host    string
		want    string
	}{
		{path: "/metrics", want: "GET /metrics none 401"},
		{path: "/metrics", headers: viewer, want: "GET /metrics viewer 200"},
		{path: api.Prefix + "/runs/nobody", headers: viewer, want: "GET " + api.Prefix + "/runs/{run} viewer 404"},
		{path: "/healthz", want: "GET /healthz none 200"},
		{path: "/healthz", host: "evil.example", want: "(none) none 403"},
		{path: "/no/such/" + b.Name(), want: "/ none 404"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+ask.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(ask.headers); i += 2 {
			req.Header.Set(ask.headers[i], ask.headers[i+1])
		}
		req.Host = ask.host
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if got := <-m.asked; got != ask.want {
			t.Errorf("%s %s: %s; want %s", ask.host, ask.path, got, ask.want)
		}
	}
}
