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
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/session"
)

// What someone says of a condition is seen by whoever asks next, and what cannot be said is refused.
func TestWhatIsSaidOfConditions(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.AddLetter("lost", deadletter.DeadLetter{Body: []byte(`{}`)})
	for _, r := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"mute", `{"kind":"dead_letters","reason":"known"}`, 422, "until_worse"},
		{"mute", `{"kind":"dead_letters","reason":"known","for":"8h","until_worse":true}`, 422, "until_worse"},
		{"mute", `{"kind":"dead_letters","reason":"known","for":"2s"}`, 422, "8h"},
		{"mute", `{"kind":"dead_letters","for":"8h"}`, 422, "reason"},
		{"mute", `{"kind":"dead_leters","reason":"known","for":"8h"}`, 404, "tranche health"},
		{"ack", `{"kind":"dead_letters","subject":"elsewhere"}`, 404, "tranche health"},
	} {
		b.Want("/health/"+r.path, r.body, r.status, r.says)
	}
	b.Want("/health/mute", `{"kind":"dead_letters","subject":"lost","reason":"known","for":"8h"}`, 200, `"until"`)
	b.Told(0, 1)
	b.Want("/health/ack", `{"kind":"dead_letters"}`, 404, "tranche health") // of all of a kind only those in the open
	b.Want("/health/ack", `{"kind":"dead_letters","subject":"lost"}`, 200, `"acknowledged"`)
	b.Told(1, 0)
	b.Want("/health/clear", `{"kind":"dead_letters"}`, 200, `"unchanged":false`)
	b.Want("/health/clear", `{"kind":"dead_letters"}`, 200, `"unchanged":true`)
	b.Told(1, 0)
}

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
		answer := testenv.Must(http.DefaultClient.Do(req))(t)
		_ = answer.Body.Close()
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

// Settings are shown beside what the streams have, and changed; what would lose something is refused.
func TestStreamSettings(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.JSON(http.MethodPost, "/streams/settings", `{"replicas":3}`, 422, nil) // no node has started
	testenv.Must(session.New(b.Store).StreamSettings(t.Context(), session.StreamValues{}))(t)
	var s api.Streams
	b.JSON(http.MethodGet, "/streams", "", 200, &s)
	if !s.Auto || s.Replicas != 1 || s.WorkBytes != stream.DefaultWorkMaxBytes || s.Applied || s.Unknown != "" ||
		len(s.Streams) != 6 || s.Bytes != 4496293888 {
		t.Errorf("%+v", s)
	}
	b.JSON(http.MethodPost, "/streams/settings", `{"replicas":3,"work_bytes":2147483648,"event_age":"48h"}`, 200, &s)
	if s.Auto || s.Replicas != 3 || s.WorkBytes != 2<<30 || s.ChangedBy == "" {
		t.Errorf("%+v", s)
	}
	for body, says := range map[string]string{
		`{}`: "give replicas", `{"replicas":2}`: "replicas", `{"work_bytes":5}`: "65536", `{"event_age":"1m"}`: "event_age",
		`{"copies":3}`: "copies",
	} {
		testenv.Has(t, b.JSON(http.MethodPost, "/streams/settings", body, 422, nil), says, "%s", body)
	}
}
