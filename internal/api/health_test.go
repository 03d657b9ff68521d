package api_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/pace"
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
		{path: "/healthz", host: "evil.example", want: "GET /healthz none 200"},
		{path: api.Prefix + "/runs", host: "evil.example", want: "(none) none 403"},
		{path: "/no/such/" + b.Name(), want: "/ none 404"},
	} {
		req := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL+ask.path, nil))(t)
		for i := 0; i < len(ask.headers); i += 2 {
			req.Header.Set(ask.headers[i], ask.headers[i+1])
		}
		req.Host = ask.host
		testenv.Do(t, req)
		testenv.Same(t, <-m.Requests, ask.want, "%s %s", ask.host, ask.path)
	}
}

// What waits in the lane of calls is told beside what waits of chunks.
func TestCallsAreCountedApart(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	nc := testenv.Conn(t, testenv.NATS(t))
	b.ServeWith(nc, api.Config{})
	js := testenv.Must(jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute)))(t)
	testenv.Must(stream.Ensure(t.Context(), js, stream.Config{Memory: true}))(t)
	testenv.NoError(t, stream.EnsureConsumer(t.Context(), js, "mail", stream.ConsumerSettings{}))
	want := func(backlog, calls uint64, taken int) {
		t.Helper()
		what := fmt.Sprintf("%d requests and %d calls wait, and %d are taken", backlog, calls, taken)
		apitest.Eventually(t, what, func() bool { // consumers learn of what the stream has a moment later
			e := apitest.Read[api.Endpoint](b, "/endpoints/mail")
			return e.Backlog == backlog && e.CallsBacklog == calls && e.CallsProcessing == taken && e.Processing == 0
		})
	}
	apitest.Change[pace.EndpointSetting](b, "/endpoints/mail/settings", `{"concurrency":7}`) // so that it is listed
	want(0, 0, 0)                                                                            // there is no lane yet
	testenv.NoError(t, stream.EnsureLane(t.Context(), js, "mail"))
	for _, name := range []string{"mail", wire.LaneOf("mail"), wire.LaneOf("mail"), wire.LaneOf("mail")} {
		testenv.Must(js.Publish(t.Context(), wire.WorkSubject(name), nil))(t)
	}
	want(1, 3, 0)
	lane := testenv.Must(js.Consumer(t.Context(), wire.StreamWork, wire.ConsumerName(wire.LaneOf("mail"))))(t)
	testenv.Must(lane.Next())(t)
	want(1, 2, 1)
}
