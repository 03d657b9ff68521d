// Package apitest has what tests of the API share: a server with its own database ([Setup]), one that requires a
// login, one with a node and services, and their clients. It is for tests only.
package apitest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/streams"
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

// StoreEngine is a node that only writes: it sends nothing to services.
type StoreEngine struct {
	startStore
	redoStore
	controlStore
	collectorStore
	db    *database.DB
	ID    workqueue.SessionID
	Begun chan struct{} // closed
	Asked *atomic.Int32 // counts calls that would reach services

	Silent *streams.StalledStreams // streams reported as not answering
}

func (e StoreEngine) Session() workqueue.SessionID { return e.ID }

func (e StoreEngine) Requeue(
	ctx context.Context, sel deadletter.DeadSelection, actor string,
) (deadletter.Requeue, error) {
	e.Asked.Add(1)
	return deadletter.New(e.db).Requeue(ctx, sel, actor)
}

func (e StoreEngine) ChangeEndpoint(
	ctx context.Context, change pace.EndpointChange, actor string,
) (pace.EndpointSetting, error) {
	e.Asked.Add(1)
	return pace.New(e.db).ChangeEndpoint(ctx, change, actor)
}

func (e StoreEngine) AddOps(
	ctx context.Context, name string, version int, batches [][]collector.Op,
) ([]collector.AddedOps, error) {
	out, _, err := collector.New(e.db).AddOps(ctx, name, version, batches)
	return out, err
}

func (e StoreEngine) Ready() <-chan struct{} { return e.Begun }

func (e StoreEngine) Stalled() *streams.StalledStreams { return e.Silent }

// Start loads a run.
func (e StoreEngine) Start(
	ctx context.Context, req start.LoadRequest, next func(*start.LoadItem) error,
) (start.Loaded, error) {
	return e.Load(ctx, req, next)
}

type Whole interface {
	apicore.Node
	runs.Engine
	api.CollectorEngine
	api.Setter
	api.Requeuer
}

func NodeOf(n Whole) api.Node {
	return api.Node{Node: n, Runs: n, Collectors: n, Endpoints: n, DeadLetters: n}
}

// Bench is a server with its own database, and its client.
type Bench struct {
	*testing.T
	Pool   *pgxpool.Pool
	Store  *database.DB
	Engine StoreEngine
	Server *api.Server
	URL    string
	Oidc   *access.OIDC // nil: no login by a provider
	Gated  bool         // requests need authentication
}

// Setup returns a bench whose node only writes.
func Setup(t *testing.T) *Bench {
	t.Helper()
	pool := testenv.Pool(t)
	store := database.New(pool)
	session, err := session.New(store).StartSession(t.Context(), session.NodeInfo{Host: "test", PID: 1, Version: "test"},
		time.Hour) // nothing renews it
	testenv.NoError(t, err)
	engine := StoreEngine{startStore: start.New(store), redoStore: redo.New(store), controlStore: control.New(store),
		collectorStore: collector.New(store), db: store, ID: session, Begun: make(chan struct{}),
		Asked: new(atomic.Int32)}
	close(engine.Begun)
	b := &Bench{T: t, Pool: pool, Store: store, Engine: engine}
	b.ServeWith(testenv.Conn(t, testenv.NATS(t)), api.Config{Build: buildinfo.Info{Version: "test"}, Alerts: tellers(t)})
	return b
}

// Over replaces the node and the settings.
func (b *Bench) Over(node api.Node, nc *nats.Conn, config api.Config) {
	b.Helper()
	server := testenv.Must(api.New(b.Store, node, nc, config))(b)
	web := httptest.NewServer(server.Handler())
	b.Cleanup(func() { web.Close(); server.Close() }) // else the next test's database could get counts of this one
	b.Server, b.URL = server, web.URL
}

// ServeWith replaces the settings.
func (b *Bench) ServeWith(nc *nats.Conn, config api.Config) {
	b.Helper()
	b.Over(NodeOf(b.Engine), nc, config)
}

type Problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Errors []struct {
		Value any `json:"value"`
	} `json:"errors"`
}

// Ask sends a request and reads the answer. An error answer must be a problem.
func (b *Bench) Ask(method, path string, body io.Reader, header ...string) (int, []byte) {
	b.Helper()
	code, text, err := b.TryAsk(method, path, body, header...)
	testenv.NoError(b, err)
	return code, text
}

// TryAsk is Ask for a goroutine other than the test's.
func (b *Bench) TryAsk(method, path string, body io.Reader, header ...string) (int, []byte, error) {
	b.Helper()
	answer, err := b.request(b.Context(), method, b.URL+path, body, header...)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return answer.StatusCode, text, err
	}
	var p Problem
	if answer.StatusCode >= 400 {
		kind := answer.Header.Get("Content-Type")
		if kind != "application/problem+json" || json.Unmarshal(text, &p) != nil || p.Status != answer.StatusCode ||
			p.Title == "" || p.Detail == "" {
			b.Errorf("%s %s: %d is not a whole problem: %s %s", method, path, answer.StatusCode, kind, text)
		}
	}
	return answer.StatusCode, text, nil
}

// Refused sends a request, wants an error answer, and returns the problem.
func (b *Bench) Refused(status int, detail, method, path string, body io.Reader, header ...string) Problem {
	b.Helper()
	code, text := b.Ask(method, path, body, header...)
	var p Problem
	_ = json.Unmarshal(text, &p) // Ask has checked it
	if code != status || !strings.Contains(p.Detail, detail) {
		b.Errorf("%s %s: got %d %q; want %d %q", method, path, code, p.Detail, status, detail)
	}
	return p
}

// Start starts a run of Three.
func (b *Bench) Start(query string) (out runs.Started) {
	b.Helper()
	code, text := b.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&"+query, strings.NewReader(Three))
	if err := json.Unmarshal(text, &out); err != nil || code > 201 {
		b.Fatalf("start: %d %s", code, text)
	}
	return out
}

// Finish answers every item; ordinal 1 fails.
func (b *Bench) Finish(run workqueue.RunID) {
	b.Helper()
	b.answer(run, 0, func(slot *settle.Slot) {
		slot.Result = []byte(`{"ok":true}`)
		if slot.Ordinal == 1 {
			slot.Result, slot.Err = nil, &workqueue.SlotError{Code: "=BAD", Message: "no\tgood"}
		}
	})
}

// Answer records a result for each item of a run, by ordinal; nil fails the item.
func (b *Bench) Answer(run workqueue.RunID, contentType string, result func(workqueue.Ordinal) []byte) {
	b.Helper()
	b.AnswerStep(run, 0, contentType, result)
}

// AnswerStep is Answer for one step.
func (b *Bench) AnswerStep(
	run workqueue.RunID, step workqueue.Step, contentType string, result func(workqueue.Ordinal) []byte,
) {
	b.Helper()
	b.answer(run, step, func(slot *settle.Slot) {
		slot.ContentType, slot.Result = contentType, result(slot.Ordinal)
		if slot.Result == nil {
			slot.ContentType, slot.Err = "", &workqueue.SlotError{Code: "E", Message: "no"}
		}
	})
}

func (b *Bench) answer(run workqueue.RunID, step workqueue.Step, fill func(*settle.Slot)) {
	b.Helper()
	claimed := testenv.Must(dispatch.New(b.Store).Claim(b.Context(), dispatch.ClaimRequest{
		Session: b.Engine.ID, Run: run, Step: step, MaxSlices: 1000, MaxBytes: 1 << 20,
	}))(b)
	for _, s := range claimed.Slices {
		answer := settle.Answer{Slice: s.ID, Endpoint: "echo", Service: "test", Answered: s.Mask.Count()}
		for bit := range s.Mask.All() {
			slot := settle.Slot{Ordinal: s.Block.Ordinal(bit)}
			fill(&slot)
			answer.Slots = append(answer.Slots, slot)
		}
		testenv.Must(settle.New(b.Store).Record(b.Context(), []settle.Answer{answer}))(b)
	}
}

const Three = "id,name\n=1,ann\n2,bob\n3,cy\n"

// Peek opens an endless stream, and reads its first line.
func (b *Bench) Peek(path string) {
	b.Helper()
	ctx, leave := context.WithCancel(b.Context())
	defer leave()
	answer := exchange(ctx, b, http.MethodGet, b.URL+api.Prefix+path, nil)
	defer func() { _ = answer.Body.Close() }()
	if line, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil || answer.StatusCode != http.StatusOK {
		b.Errorf("GET %s: %s, %q, %v", path, answer.Status, line, err)
	}
}

var Loopback = netip.MustParsePrefix("127.0.0.0/8")

// tellers returns receivers that may run one program, and send mail.
func tellers(t *testing.T) *alerts.Receivers {
	t.Helper()
	return testenv.Must(alerts.NewReceivers(alerts.Config{Transport: http.DefaultTransport,
		Programs:    map[string]string{"page": "/bin/true"},
		Connections: &connections.Connections{SMTP: &connections.SMTP{}}}))(t)
}
