package api_test

import (
	"net/http"
	"testing"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Requests are told apart by the pattern of their route, and by who asked; /metrics is for who may look.
func TestRequestsAreMeasured(t *testing.T) {
	t.Parallel()
	m := apitest.NewMeasured()
	b := apitest.Setup(t).LockedWith(api.Config{Metrics: m}, access.Config{})
	viewer := []string{"Authorization", "Bearer " + b.Token("v", access.Viewer, 0).Secret}
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
		{path: api.Prefix + "/runs", host: "evil.example", want: "(none) none 403"},
		{path: "/no/such/" + b.Name(), want: "/ none 404"},
	} {
		req := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL+ask.path, nil))(t)
		for i := 0; i < len(ask.headers); i += 2 {
			req.Header.Set(ask.headers[i], ask.headers[i+1])
		}
		req.Host = ask.host
		answer, err := http.DefaultClient.Do(req)
		testenv.NoError(t, err)
		_ = answer.Body.Close()
		if got := <-m.Requests; got != ask.want {
			t.Errorf("%s %s: %s; want %s", ask.host, ask.path, got, ask.want)
		}
	}
}
