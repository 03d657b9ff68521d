package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/start"
)

// slowEngine takes longer than a caller may be silent, and fails when its context ends.
type slowEngine struct{ apitest.StoreEngine }

func (slowEngine) work(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return errors.New("the context of the work ended")
	case <-time.After(apitest.Timeout + time.Second):
		return nil
	}
}

func (e slowEngine) Rerun(ctx context.Context, _ redo.RerunRequest) (redo.Rerun, error) {
	return redo.Rerun{Items: 7}, e.work(ctx)
}

func (e slowEngine) Cancel(ctx context.Context, _ control.Control) (control.Cancelled, error) {
	return control.Cancelled{}, e.work(ctx)
}

func (e slowEngine) Start(
	ctx context.Context, _ start.LoadRequest, next func(*start.LoadItem) error,
) (start.Loaded, error) {
	var item start.LoadItem
	for {
		switch err := next(&item); {
		case err == nil:
		case errors.Is(err, io.EOF):
			return start.Loaded{}, e.work(ctx)
		default:
			return start.Loaded{}, err
		}
	}
}

// Deadlines are about what a caller sends. Work that takes longer than them succeeds.
func TestWorkMayTakeLongerThanTheReading(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	b.Over(apitest.NodeOf(slowEngine{b.Engine}), testenv.Conn(t, testenv.NATS(t)),
		api.Config{ReadTimeout: apitest.Timeout})
	multi := "--x\r\nContent-Disposition: form-data; name=\"run\"\r\n\r\n{\"endpoint\":\"echo\"}" +
		"\r\n--x\r\nContent-Disposition: form-data; name=\"items\"\r\n\r\n" + apitest.Three + "\r\n--x--\r\n"
	var all sync.WaitGroup // concurrently, and not as tests of their own: they do little but wait
	for _, c := range []struct{ path, kind, body string }{
		{"/runs/last/cancel", "", ""}, {"/runs/last/rerun", "application/json", `{"failed":true}`},
		{"/runs?endpoint=echo", "text/csv", apitest.Three}, {"/runs", "multipart/form-data; boundary=x", multi},
	} {
		for _, body := range []io.Reader{strings.NewReader(c.body), io.MultiReader(strings.NewReader(c.body))} {
			all.Go(func() {
				code, text, err := b.TryAsk(http.MethodPost, api.Prefix+c.path, body, "Content-Type", c.kind)
				if code >= 300 || err != nil {
					t.Errorf("%s, by %T: %d %s, %v", c.path, body, code, text, err)
				}
			})
		}
	}
	all.Wait()
}

// A sender that goes silent is not waited for.
func TestASilentSenderIsGivenUp(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Over(apitest.NodeOf(b.Engine), testenv.Conn(t, testenv.NATS(t)), api.Config{ReadTimeout: apitest.Silence})
	stalled, feed := io.Pipe()
	go func() { _, _ = feed.Write([]byte("id,name\n1,a\n")) }() // and no more
	defer func() { _ = feed.Close() }()
	b.Refused(422, "nothing more came", http.MethodPost, api.Prefix+"/runs?endpoint=echo", stalled)
}

func TestWhatIsAwayIsNamed(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	unready := b.Engine
	unready.Begun = make(chan struct{})
	nowhere := testenv.Must(endpoints.Connect(func(o *nats.Options) error {
		o.Servers = []string{"nats://127.0.0.1:1"}
		return nil
	}))(t)
	t.Cleanup(nowhere.Close)
	b.Over(apitest.NodeOf(unready), nowhere, api.Config{})
	b.Refused(503, "NATS is not connected", http.MethodGet, "/readyz", nil)
	b.Refused(503, "NATS is not connected", http.MethodGet, api.Prefix+"/endpoints", nil)
	b.Refused(503, "NATS is not connected", http.MethodPost, api.Prefix+"/runs?endpoint=echo",
		strings.NewReader(apitest.Three))
	b.Refused(503, "NATS is not connected", http.MethodPost, api.Prefix+"/runs/last/cancel", nil)
	if code, text := b.Ask(http.MethodGet, api.Prefix+"/runs/last", nil); code != 200 || // PostgreSQL is there
		!strings.Contains(string(text), "NATS does not answer") {
		t.Errorf("a run without NATS: %d %s", code, text)
	}
	b.Over(apitest.NodeOf(unready), testenv.Conn(t, testenv.NATS(t)), api.Config{})
	b.Refused(503, "streams", http.MethodGet, "/readyz", nil)
	b.Refused(503, "has not started", http.MethodPost, api.Prefix+"/runs/last/cancel", nil)

	leaderless := b.Engine
	leaderless.Silent = &streams.StalledStreams{Seconds: 4, Why: "it has no leader"}
	b.Over(apitest.NodeOf(leaderless), testenv.Conn(t, testenv.NATS(t)), api.Config{})
	b.Refused(503, "JetStream does not answer (it has no leader): more than half", http.MethodGet, "/readyz", nil)

	b.Over(apitest.NodeOf(b.Engine), testenv.Conn(t, testenv.NATS(t)), api.Config{QueryTimeout: time.Nanosecond})
	b.Refused(503, "PostgreSQL", http.MethodGet, api.Prefix+"/runs/last", nil)

	silent := testenv.Must(pgxpool.New(t.Context(), "postgres://127.0.0.1:1/x"))(t)
	t.Cleanup(silent.Close)
	b.Store = database.New(silent)
	b.Over(apitest.NodeOf(b.Engine), nowhere, api.Config{})
	p := b.Refused(503, "PostgreSQL does not answer", http.MethodGet, "/readyz", nil)
	testenv.Has(t, p.Detail, "NATS is not connected", "only one of two is named")
	b.Refused(503, "PostgreSQL does not answer", http.MethodGet, api.Prefix+"/runs/last/export", nil)
}

// What is used up is named, with what helps, while nodes meet it.
func TestWhatIsUsedUpIsNamed(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	started := b.Start("name=it&chunk=2&in_flight=1")
	b.Answer(started.Run, "", func(workqueue.Ordinal) []byte { return []byte("{}") }) // the first chunk
	b.Exec("UPDATE work_slice SET ended_at = ended_at + interval '1 hour'")           // it stays what was answered lately
	unready := b.Engine
	unready.Begun = make(chan struct{})
	full := fmt.Errorf("record: %w", &pgconn.PgError{Code: "53100", Message: "could not extend file"})
	tight := fmt.Errorf("make stream: %w", &jetstream.APIError{
		Code: 500, ErrorCode: 10047, Description: "insufficient storage resources available",
	})
	with := func(engine apitest.Whole, err error, ago time.Duration) {
		last := func() (api.Trouble, bool) {
			return api.Trouble{What: "it went wrong", Err: err, At: time.Now().Add(-ago)}, true
		}
		b.Over(apitest.NodeOf(engine), testenv.Conn(t, testenv.NATS(t)),
			api.Config{StreamBytes: func() int64 { return 5 << 30 }, Trouble: last})
	}
	warnings := func() string { return strings.Join(apitest.Read[runs.RunDocument](b, "/runs/it").Warnings, "; ") }
	with(b.Engine, full, 0)
	b.Refused(503, "disk is full (could not extend file)", http.MethodGet, "/readyz", nil)
	testenv.Has(t, warnings(), "disk is full", "the run warns")
	if run := apitest.Read[runs.RunDocument](b, "/runs/it"); run.Rate == 0 || run.Forecast.P50 != nil ||
		!strings.Contains(run.Forecast.WhyNot, "disk is full") {
		t.Errorf("%v items a second, %+v; want no time while something stands in its way", run.Rate, run.Forecast)
	}
	late := &database.SlowError{For: "the search for work", Took: 15 * time.Second}
	with(b.Engine, fmt.Errorf("find work: %w", late), 0)
	const slow = "PostgreSQL takes more than 15 s for the search for work"
	b.Refused(503, slow, http.MethodGet, "/readyz", nil)
	if why := apitest.Read[health.Explanation](b, "/runs/it/explain").Groups[0].Why; !strings.HasPrefix(why, slow) {
		t.Errorf("the run is explained by %q", why)
	}
	with(unready, tight, 0)
	b.Refused(503, "together they need 5.0 GiB", http.MethodGet, "/readyz", nil)
	b.Refused(503, "JetStream has no room", http.MethodPost, api.Prefix+"/runs/it/cancel", nil)
	with(unready, errors.New("a reason of another kind"), 0)
	b.Refused(503, "it went wrong: a reason of another kind", http.MethodGet, "/readyz", nil)
	for _, passed := range []func(){
		func() { with(b.Engine, full, time.Minute) }, func() { with(b.Engine, errors.New("once"), 0) },
	} {
		passed()
		code, text := apitest.Ready(b)
		testenv.Same(t, code, http.StatusOK, "what has passed is held against it: %s", text)
	}

	// A change that PostgreSQL refuses for that reason says so too.
	b.Over(apitest.NodeOf(fullEngine{b.Engine}), testenv.Conn(t, testenv.NATS(t)), api.Config{})
	b.Refused(503, "disk is full", http.MethodPost, api.Prefix+"/runs/it/cancel", nil)
}

// fullEngine has a PostgreSQL without room.
type fullEngine struct{ apitest.StoreEngine }

func (fullEngine) Cancel(context.Context, control.Control) (control.Cancelled, error) {
	return control.Cancelled{}, &pgconn.PgError{Code: "53100", Message: "could not extend file"}
}

// PROOF: who may do what, 19.
// A body that trickles in is not waited for, although its sender is never silent; one that is
// read as it comes may take as long as it likes when it comes.
func TestABodyThatTricklesIsEnded(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	const csv = "Content-Type: text/csv\r\n"
	many := "id,name\n"
	for i := range 2000 {
		many += fmt.Sprintf("%d,%s\n", i, strings.Repeat("x", 10))
	}
	for path, says := range map[string]string{
		"/runs?endpoint=echo": "came too slowly",
		"/items/preview":      "came too slowly",
		"/runs/it/rerun":      "came too slowly",
		"/runs/open":          "came too slowly",
		"/runs/it/pause":      "",
		"/plans":              "",
		"/session":            "", // which no one has to log in for
		"/trackers":           "",
		"/runs/it/settings":   "",
	} {
		b.Server.LetStall(trickleTimeout)
		kind, body := "", "{"+strings.Repeat(" ", 5000)+"}"
		if strings.HasPrefix(path, "/runs?") || path == "/items/preview" {
			kind, body = csv, many
		}
		trickled(b, path, kind, body, 1, func(status int, text string) bool {
			return status >= 400 && strings.Contains(text, says) &&
				(says != "" || status == http.StatusRequestTimeout || status == http.StatusUnprocessableEntity)
		})
	}
	began := time.Now()
	trickled(b, "/runs?endpoint=echo&name=long", csv, many, 1000, func(status int, _ string) bool {
		return status == http.StatusCreated
	})
	if took := time.Since(began); took < 2*trickleTimeout {
		t.Errorf("a long body took %s only", took)
	}
	b.LockedWith(api.Config{ReadTimeout: trickleTimeout}, access.Config{})
	trickled(b, "/session", "", `{"token":"`+strings.Repeat("x", 5000), 1, func(status int, _ string) bool {
		return status >= 400
	})
}

const trickleTimeout = 400 * time.Millisecond

// trickled sends a body in pieces, and wants a good answer. A machine that is stalled makes the sender a silent one,
// which is answered in another way: then it is sent again.
func trickled(b *apitest.Bench, path, kind, body string, piece int, good func(status int, text string) bool) {
	b.Helper()
	for tries := 1; ; tries++ {
		watch := testenv.NewWatch(b.T)
		status, text := b.Trickle(path, kind, body, piece, trickleTimeout/10)
		if good(status, text) {
			return
		}
		if watch.Longest() < trickleTimeout/4 || tries == 20 {
			b.Errorf("%s: a trickle is answered %d %s, after %s", path, status, text, watch.Ran())
			return
		}
	}
}

// An answer that does not need the body comes before the body ends: its sender may be waiting for just that.
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
		"start, unknown parameter": {code: 422, method: "POST", path: "/runs?color=red", kind: "text/csv", body: "id\n1\n"},
		"start, bad format":        {code: 422, method: "POST", path: "/runs?format=x", kind: "text/csv", body: "id\n1\n"},
		"start, bad items": {code: 422, method: "POST", path: "/runs?endpoint=echo", kind: "text/csv",
			body: "id,name\n1\n" + strings.Repeat("2,a\n", 100_000)},
		"plan, unknown parameter": {code: 422, method: "POST", path: "/plans?color=red", body: "steps:\n"},
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
			testenv.Same(t, answer.StatusCode, c.code, "the answer")
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
		testenv.MustSame(t, err, nil, "%s", path)
		status := testenv.Must(bufio.NewReader(conn).ReadString('\n'))(t)
		testenv.Has(t, status, " 413 ", "%s", path)
	}
}

// Other items under the same key are refused, however many there are, and the connection is not reset.
func TestAReplayWithOtherItemsIsRefused(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Over(apitest.NodeOf(b.Engine), testenv.Conn(t, testenv.NATS(t)), api.Config{ReadTimeout: 2 * time.Minute})
	b.Start("idempotency_key=k")
	b.Refused(http.StatusConflict, "with other content: the items", http.MethodPost,
		api.Prefix+"/runs?endpoint=echo&idempotency_key=k",
		strings.NewReader(apitest.Three+strings.Repeat("9,no one reads this\n", 1<<18)))
}
