package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/starts"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

type (
	startStore     = start.Store
	redoStore      = redo.Store
	controlStore   = control.Store
	collectorStore = collector.Store
)

// storeEngine is a node that only writes: nothing is sent to services.
type storeEngine struct {
	startStore
	redoStore
	controlStore
	collectorStore
	db      *database.DB
	session workqueue.SessionID
	ready   chan struct{} // closed
	asked   *atomic.Int32 // for what has to reach services
}

func (e storeEngine) Session() workqueue.SessionID { return e.session }

func (e storeEngine) Requeue(
	ctx context.Context, sel deadletter.DeadSelection, actor string,
) (deadletter.Requeue, error) {
	e.asked.Add(1)
	return deadletter.New(e.db).Requeue(ctx, sel, actor)
}

func (e storeEngine) ChangeEndpoint(
	ctx context.Context, change pace.EndpointChange, actor string,
) (pace.EndpointSetting, error) {
	e.asked.Add(1)
	return pace.New(e.db).ChangeEndpoint(ctx, change, actor)
}

func (e storeEngine) AddOps(
	ctx context.Context, name string, version int, batches [][]collector.Op,
) ([]collector.AddedOps, error) {
	out, _, err := collector.New(e.db).AddOps(ctx, name, version, batches)
	return out, err
}

func (e storeEngine) Ready() <-chan struct{} { return e.ready }

func (e storeEngine) Start(
	ctx context.Context, req start.LoadRequest, next func(*start.LoadItem) error,
) (start.Loaded, error) {
	return e.Load(ctx, req, next)
}

type bench struct {
	*testing.T
	pool   *pgxpool.Pool
	store  *database.DB
	engine storeEngine
	server *api.Server
	url    string
	oidc   *access.OIDC // nil: nobody logs in by a provider
}

func setup(t *testing.T) *bench {
	t.Helper()
	pool := testenv.Pool(t)
	store := database.New(pool)
	session, err := session.New(store).StartSession(t.Context(), session.NodeInfo{Host: "test", PID: 1, Version: "test"},
		time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	engine := storeEngine{startStore: start.New(store), redoStore: redo.New(store), controlStore: control.New(store),
		collectorStore: collector.New(store), db: store, session: session, ready: make(chan struct{}),
		asked: new(atomic.Int32)}
	close(engine.ready)
	server, err := api.New(store, engine, testenv.Conn(t, testenv.NATS(t)), api.Config{
		Version: "test", Alerts: tellers(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(server.Handler())
	t.Cleanup(web.Close)
	return &bench{T: t, pool: pool, store: store, engine: engine, server: server, url: web.URL}
}

type problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Errors []struct {
		Value any `json:"value"`
	} `json:"errors"`
}

// ask sends a request and reads the answer, which must be a problem when it says no.
func (b *bench) ask(method, path string, body io.Reader, header ...string) (int, []byte) {
	b.Helper()
	code, text, err := b.tryAsk(method, path, body, header...)
	if err != nil {
		b.Fatal(err)
	}
	return code, text
}

// tryAsk does that in a goroutine that is not the test's.
func (b *bench) tryAsk(method, path string, body io.Reader, header ...string) (int, []byte, error) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), method, b.url+path, body)
	if err != nil {
		return 0, nil, err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	answer, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return answer.StatusCode, text, err
	}
	var p problem
	if answer.StatusCode >= 400 {
		kind := answer.Header.Get("Content-Type")
		if kind != "application/problem+json" || json.Unmarshal(text, &p) != nil || p.Status != answer.StatusCode ||
			p.Title == "" || p.Detail == "" {
			b.Errorf("%s %s: %d is not a whole problem: %s %s", method, path, answer.StatusCode, kind, text)
		}
	}
	return answer.StatusCode, text, nil
}

func (b *bench) refused(status int, detail, method, path string, body io.Reader, header ...string) problem {
	b.Helper()
	code, text := b.ask(method, path, body, header...)
	var p problem
	_ = json.Unmarshal(text, &p) // ask has checked it
	if code != status || !strings.Contains(p.Detail, detail) {
		b.Errorf("%s %s: got %d %q; want %d %q", method, path, code, p.Detail, status, detail)
	}
	return p
}

func (b *bench) start(query string) starts.Started {
	b.Helper()
	code, text := b.ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&"+query, strings.NewReader(three))
	var out starts.Started
	if err := json.Unmarshal(text, &out); err != nil || code > 201 {
		b.Fatalf("start: %d %s", code, text)
	}
	return out
}

// finish answers every item; those whose key begins with bad fail.
func (b *bench) finish(run workqueue.RunID) {
	b.Helper()
	claimed, err := dispatch.New(b.store).Claim(b.Context(), dispatch.ClaimRequest{
		Session: b.engine.session, Run: run, MaxSlices: 1000, MaxBytes: 1 << 20,
	})
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range claimed.Slices {
		answer := settle.Answer{Slice: s.ID, Endpoint: "echo", Service: "test", Answered: s.Mask.Count()}
		for bit := range s.Mask.All() {
			slot := settle.Slot{Ordinal: s.Block.Ordinal(bit), Result: []byte(`{"ok":true}`)}
			if slot.Ordinal == 1 {
				slot.Result, slot.Err = nil, &workqueue.SlotError{Code: "=BAD", Message: "no\tgood"}
			}
			answer.Slots = append(answer.Slots, slot)
		}
		if _, err := settle.New(b.store).Record(b.Context(), []settle.Answer{answer}); err != nil {
			b.Fatal(err)
		}
	}
}

const three = "id,name\n=1,ann\n2,bob\n3,cy\n"

// peek opens a stream, which has no end, and reads what it begins with.
func (b *bench) peek(path string) {
	b.Helper()
	ctx, leave := context.WithCancel(b.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+api.Prefix+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	answer, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if line, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil || answer.StatusCode != http.StatusOK {
		b.Errorf("GET %s: %s, %q, %v", path, answer.Status, line, err)
	}
}

// tellers lets alerts run one program.
func tellers(t *testing.T) *alerts.Receivers {
	t.Helper()
	receivers, err := alerts.NewReceivers(alerts.Config{Transport: http.DefaultTransport,
		Programs: map[string]string{"page": "/bin/true"}})
	if err != nil {
		t.Fatal(err)
	}
	return receivers
}
