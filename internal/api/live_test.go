package api_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/internal/testenv"
)

// sse is a stream of events that was opened.
type sse struct {
	*testing.T
	lines *bufio.Scanner
	close func()
	last  string
}

func (b *bench) follow(path string, header ...string) *sse {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+api.Prefix+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(req) //nolint:bodyclose // by close
	if err != nil {
		b.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" {
		text, _ := io.ReadAll(answer.Body)
		b.Fatalf("%s: %d %s", path, answer.StatusCode, text)
	}
	s := &sse{T: b.T, lines: bufio.NewScanner(answer.Body), close: func() { cancel(); _ = answer.Body.Close() }}
	b.Cleanup(s.close)
	return s
}

// next reads to the next event of a name.
func (s *sse) next(name string) string {
	s.Helper()
	event := ""
	for s.lines.Scan() {
		field, value, _ := strings.Cut(s.lines.Text(), ": ")
		switch {
		case field == "id":
			s.last = value
		case field == "event":
			event = value
		case field == "data" && event == name:
			return value
		}
	}
	s.Fatalf("the stream ended before event %s: %v", name, s.lines.Err())
	return ""
}

// lead applies the changes of all steps together, as a page does, until they have led to where the items are.
func (s *sse) lead(want []byte) {
	s.Helper()
	for states := make([]byte, len(want)); !slices.Equal(states, want); {
		text := s.next("delta")
		var delta live.Delta
		if err := json.Unmarshal([]byte(text), &delta); err != nil || delta.Step != "" || len(delta.Changes)%3 != 0 {
			s.Fatalf("delta %s: %v", text, err)
		}
		for change := range slices.Chunk(delta.Changes, 3) {
			if int(change[0]+change[1]) > len(states) {
				s.Fatalf("delta %s goes beyond %d items", text, len(states))
			}
			for o := change[0]; o < change[0]+change[1]; o++ {
				states[o] = byte(change[2])
			}
		}
	}
}

func TestAStreamLeadsThroughARun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	started := b.start("chunk=2")
	s := b.follow("/runs/last/events?planes=true")
	hello := s.next("hello")
	if run := s.next("run"); !strings.Contains(run, `"state":"running"`) || !strings.Contains(run, `"warnings"`) {
		t.Errorf("the run is %s", run)
	}
	b.finish(started.Run)
	s.lead([]byte{5, 6, 5})
	if end := s.next("end"); end != "{}" {
		t.Errorf("end %s", end)
	}
	s.close()
	back := b.follow("/runs/last/events?planes=true", "Last-Event-ID", s.last)
	if again := back.next("hello"); again != strings.TrimSuffix(hello, "}")+`,"resumed":true}` {
		t.Errorf("back at %s; before it was %s", again, hello)
	}
	stranger := b.follow("/runs/last/events?planes=true", "Last-Event-ID", "elsewhere-7")
	stranger.next("resync")
	runs := b.follow("/events?topic=runs&topic=health")
	if list := runs.next("runs"); !strings.Contains(list, started.Run.String()) {
		t.Errorf("runs %s", list)
	}
}

// PROOF: who may do what, 7.
func TestStreamsThatCannotBe(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.start("chunk=2")
	at := api.Prefix + "/runs/last/"
	b.refused(404, "no step", http.MethodGet, at+"events?planes=true&step=nope", nil)
	b.refused(404, "no step", http.MethodGet, at+"planes?step=nope", nil)
	b.refused(422, "planes=true", http.MethodGet, at+"events?step=echo", nil)
	b.refused(422, "", http.MethodGet, at+"planes?layer=colour", nil)
	b.refused(422, "", http.MethodGet, at+"planes?blocks=129", nil)
	b.refused(422, "", http.MethodGet, api.Prefix+"/events?topic=weather", nil)
	b.refused(422, "to lies before from", http.MethodGet, at+"items?from=2&to=1", nil)
	b.refused(422, "validation failed", http.MethodGet, at+"items?from=4294967297", nil)
	if _, text := b.ask(http.MethodGet, at+"items?after=2147483647", nil); !strings.Contains(string(text), `"items":[]`) {
		t.Errorf("behind the last ordinal there is: %s", text)
	}
	b.refused(422, "id of a slice", http.MethodGet, at+"slices?after=x", nil)
	var open []*sse
	for range 24 {
		open = append(open, b.follow("/runs/last/events"))
	}
	b.refused(429, "close some", http.MethodGet, at+"events", nil)
	b.refused(429, "close some", http.MethodGet, api.Prefix+"/events?topic=runs", nil)
	open[0].close()
	for deadline := time.Now().Add(10 * time.Second); ; {
		code, _ := b.head(at + "events")
		if code == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a stream ended, and another may still not be: %d", code)
		}
	}
}

// head asks and reads nothing of the answer but its head.
func (b *bench) head(path string, header ...string) (int, http.Header) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode, answer.Header
}

func TestPlanesAreZippedAndKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	items := "id\n" + strings.Repeat("x\n", 9000)
	code, text := b.ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&on_duplicate=allow", strings.NewReader(items))
	if code != http.StatusCreated {
		t.Fatalf("%d %s", code, text)
	}
	at := api.Prefix + "/runs/last/planes"
	_, header := b.head(at)
	if header.Get("Tranche-Items") != "9000" || header.Get("Tranche-Blocks") != "2" {
		t.Errorf("the head is %v", header)
	}
	if code, _ := b.head(at, "If-None-Match", header.Get("ETag")); code != http.StatusNotModified {
		t.Errorf("what is known is sent again: %d", code)
	}
	_, zipped := b.ask(http.MethodGet, at, nil, "Accept-Encoding", "gzip")
	r, err := gzip.NewReader(strings.NewReader(string(zipped)))
	if err != nil {
		t.Fatal(err)
	}
	planes, err := io.ReadAll(r)
	if err != nil || !slices.Equal(planes, slices.Repeat([]byte{2}, 9000)) || len(zipped) > 200 {
		t.Errorf("%d bytes in %d, %v", len(planes), len(zipped), err)
	}
	_, last := b.ask(http.MethodGet, at+"?from=1&layer=attempts", nil)
	if len(last) != 9000-8192 {
		t.Errorf("the last block has %d bytes", len(last))
	}
}

// A stream outlives the patience with callers that take nothing, and ends when the server does.
func TestStreamsEndWithTheServer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.start("chunk=2")
	server, err := api.New(b.store, b.engine, testenv.Conn(t, testenv.NATS(t)), api.Config{
		Build: buildinfo.Info{Version: "test"}, ReadTimeout: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener, time.Minute) }()
	other := &bench{T: t, pool: b.pool, store: b.store, engine: b.engine, url: "http://" + listener.Addr().String()}
	s, topics := other.follow("/runs/last/events?planes=true"), other.follow("/events?topic=runs")
	s.next("run")
	topics.next("runs")
	<-time.After(3 * patience)
	run := b.start("name=second&chunk=2").Run
	if text := topics.next("runs"); !strings.Contains(text, run.String()) {
		t.Errorf("runs %s", text)
	}
	begun := time.Now()
	stop()
	for s.lines.Scan() || topics.lines.Scan() {
	}
	if err := <-served; err != nil || time.Since(begun) > 20*time.Second {
		t.Errorf("the server ended with %v after %v", err, time.Since(begun))
	}
}

// Who asks only for the head of a stream is not kept waiting, and keeps no stream.
func TestTheHeadOfAStreamEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.start("chunk=2")
	for range 30 {
		for _, path := range []string{"/runs/last/events?planes=true", "/events?topic=runs"} {
			if head := b.send(http.MethodHead, api.Prefix+path, ""); head.StatusCode != http.StatusOK {
				t.Fatalf("HEAD %s: %d", path, head.StatusCode)
			}
		}
	}
}

// The document describes streams and planes.
func TestLiveIsDescribed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, text := b.ask(http.MethodGet, api.Prefix+"/openapi.json", nil)
	var doc struct {
		Paths map[string]map[string]struct {
			Description string
			Responses   map[string]struct {
				Content map[string]json.RawMessage
				Headers map[string]json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	for path, kind := range map[string]string{
		"/runs/{run}/planes": "application/octet-stream", "/runs/{run}/events": "text/event-stream",
		"/events": "text/event-stream", "/runs/{run}/timeline": "application/json",
		"/runs/{run}/slices": "application/json", "/runs/{run}/items": "application/json",
	} {
		op := doc.Paths[path]["get"]
		if op.Description == "" || op.Responses["200"].Content[kind] == nil {
			t.Errorf("%s: %+v", path, op)
		}
	}
	if doc.Paths["/runs/{run}/planes"]["get"].Responses["200"].Headers["Tranche-Items"] == nil {
		t.Error("the headers of planes are not described")
	}
}
