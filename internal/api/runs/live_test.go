package runs_test

import (
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestAStreamLeadsThroughARun(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	started := b.Start("chunk=2")
	s := b.Follow("/runs/last/events?planes=true")
	hello := s.Next("hello")
	if run := s.Next("run"); !strings.Contains(run, `"state":"running"`) || !strings.Contains(run, `"warnings"`) {
		t.Errorf("the run is %s", run)
	}
	b.Finish(started.Run)
	_, run := b.Get("/runs/last")
	testenv.Has(t, run, `"warnings":[]`, "the run")
	s.Lead([]byte{5, 6, 5})
	testenv.Same(t, s.Next("end"), "{}", "end")
	s.Close()
	back := b.Follow("/runs/last/events?planes=true", "Last-Event-ID", s.Last)
	testenv.Same(t, back.Next("hello"), strings.TrimSuffix(hello, "}")+`,"resumed":true}`, "back at, after %s", hello)
	stranger := b.Follow("/runs/last/events?planes=true", "Last-Event-ID", "elsewhere-7")
	stranger.Next("resync")
	runs := b.Follow("/events?topic=runs&topic=health")
	testenv.Has(t, runs.Next("runs"), started.Run.String(), "runs")
}

// PROOF: who may do what, 7.
func TestStreamsThatCannotBe(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("chunk=2")
	at := api.Prefix + "/runs/last/"
	b.Refused(404, "no step", http.MethodGet, at+"events?planes=true&step=nope", nil)
	b.Refused(404, "no step", http.MethodGet, at+"planes?step=nope", nil)
	b.Refused(422, "planes=true", http.MethodGet, at+"events?step=echo", nil)
	b.Refused(422, "", http.MethodGet, at+"planes?layer=color", nil)
	b.Refused(422, "", http.MethodGet, at+"planes?blocks=129", nil)
	b.Refused(422, "", http.MethodGet, api.Prefix+"/events?topic=weather", nil)
	b.Refused(422, "to lies before from", http.MethodGet, at+"items?from=2&to=1", nil)
	b.Refused(422, "validation failed", http.MethodGet, at+"items?from=4294967297", nil)
	_, text := b.Ask(http.MethodGet, at+"items?after=2147483647", nil)
	testenv.Has(t, string(text), `"items":[]`, "behind the last ordinal")
	b.Refused(422, "id of a slice", http.MethodGet, at+"slices?after=x", nil)
	var open []*apitest.Sse
	for range 24 {
		open = append(open, b.Follow("/runs/last/events"))
	}
	b.Refused(429, "close some", http.MethodGet, at+"events", nil)
	b.Refused(429, "close some", http.MethodGet, api.Prefix+"/events?topic=runs", nil)
	open[0].Close()
	apitest.Eventually(t, "a stream ended, and another may be", func() bool {
		return b.Send(http.MethodGet, at+"events", "").StatusCode == http.StatusOK
	})
}

func TestPlanesAreZippedAndKept(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	items := "id\n" + strings.Repeat("x\n", 9000)
	code, text := b.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&on_duplicate=allow", strings.NewReader(items))
	testenv.MustSame(t, code, http.StatusCreated, "%s", text)
	at := api.Prefix + "/runs/last/planes"
	header := b.Send(http.MethodGet, at, "").Header
	if header.Get("Tranche-Items") != "9000" || header.Get("Tranche-Blocks") != "2" {
		t.Errorf("the head is %v", header)
	}
	again := b.Send(http.MethodGet, at, "", "If-None-Match", header.Get("ETag"))
	testenv.Same(t, again.StatusCode, http.StatusNotModified, "what is known is sent again")
	_, zipped := b.Ask(http.MethodGet, at, nil, "Accept-Encoding", "gzip")
	r := testenv.Must(gzip.NewReader(strings.NewReader(string(zipped))))(t)
	planes, err := io.ReadAll(r)
	if err != nil || !slices.Equal(planes, slices.Repeat([]byte{2}, 9000)) || len(zipped) > 200 {
		t.Errorf("%d bytes in %d, %v", len(planes), len(zipped), err)
	}
	_, last := b.Ask(http.MethodGet, at+"?from=1&layer=attempts", nil)
	testenv.Same(t, len(last), 9000-8192, "bytes of the last block")
}

// A stream outlives the patience with callers that take nothing, and ends when the server does.
func TestStreamsEndWithTheServer(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("chunk=2")
	server := testenv.Must(api.New(b.Store, apitest.NodeOf(b.Engine), testenv.Conn(t, testenv.NATS(t)), api.Config{
		Build: buildinfo.Info{Version: "test"}, ReadTimeout: apitest.Timeout,
	}))(t)
	var config net.ListenConfig
	listener := testenv.Must(config.Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener, 5*time.Minute) }()
	other := &apitest.Bench{T: t, Pool: b.Pool, Store: b.Store, Engine: b.Engine,
		URL: "http://" + listener.Addr().String()}
	s, topics := other.Follow("/runs/last/events?planes=true"), other.Follow("/events?topic=runs")
	s.Next("run")
	topics.Next("runs")
	<-time.After(apitest.Timeout + time.Second)
	run := b.Start("name=second&chunk=2").Run
	for !strings.Contains(topics.Next("runs"), run.String()) { // before it there may be news of the first
	}
	begun := time.Now()
	stop()
	for s.Lines.Scan() || topics.Lines.Scan() {
	}
	if err := <-served; err != nil || s.Lines.Err() != nil || topics.Lines.Err() != nil {
		t.Errorf("the server ended with %v after %v", err, time.Since(begun))
	}
}

// Who asks only for the head of a stream is not kept waiting, and keeps no stream.
func TestTheHeadOfAStreamEnds(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("chunk=2")
	for range 30 {
		for _, path := range []string{"/runs/last/events?planes=true", "/events?topic=runs"} {
			testenv.MustSame(t, b.Send(http.MethodHead, api.Prefix+path, "").StatusCode, http.StatusOK, "HEAD %s", path)
		}
	}
}
