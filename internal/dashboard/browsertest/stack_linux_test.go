package browsertest_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/dashboard"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
	"github.com/tranchehq/tranche/workqueue/inspect"
	startstore "github.com/tranchehq/tranche/workqueue/start"
)

const grace = 2 * time.Second

type stackConfig struct {
	locked bool // whoever comes has to log in
}

// stack is a server with all that it needs: a database, NATS and a node.
type stack struct {
	*testing.T
	config stackConfig
	pool   *pgxpool.Pool
	store  *database.DB
	ns     *embedded.NATS
	nc     *nats.Conn
	node   *orchestrator.Node
	addr   string
	url    string
	stop   func() // the server alone
}

func newStack(t *testing.T, config stackConfig) *stack {
	t.Helper()
	s := &stack{T: t, config: config, pool: wide(t), ns: testenv.NATS(t), addr: testenv.QuietAddr(t)}
	s.store, s.nc = database.New(s.pool), testenv.Conn(t, s.ns)
	node, err := orchestrator.New(s.store, s.nc, orchestrator.Config{Version: "test", Host: "here", Grace: grace,
		SessionTTL: time.Minute, // a machine that stands still makes no node that health tells of as dead
		Streams:    stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	s.node = node
	s.keep(node.Run)
	select {
	case <-node.Ready():
	case <-time.After(patience):
		t.Fatal("the node did not get ready")
	}
	s.serve()
	return s
}

// wide is a database with so many connections that what a page asks for at once does not wait for its turn: on a
// machine that stands still it would be told to come again.
func wide(t *testing.T) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 64
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// serve starts the server, at the address where it was before.
func (s *stack) serve() {
	s.Helper()
	listener := s.bound()
	s.url = "http://" + s.addr
	pages, err := dashboard.Handler(dashboard.Config{})
	if err != nil {
		s.Fatal(err)
	}
	settings := api.Config{Build: buildinfo.Info{Version: "test"}, Dashboard: pages, LookTimeout: patience}
	settings.Alerts, err = alerts.NewReceivers(alerts.Config{Transport: http.DefaultTransport,
		Programs: map[string]string{"page": "/bin/true"}})
	if err != nil {
		s.Fatal(err)
	}
	if s.config.locked {
		if settings.Access, err = access.New(identity.New(s.store), access.Config{}); err != nil {
			s.Fatal(err)
		}
	}
	server, err := api.New(s.store, api.NodeOf(s.node), s.nc, settings)
	if err != nil {
		s.Fatal(err)
	}
	s.stop = s.keep(func(ctx context.Context) error { return server.Serve(ctx, listener, grace) })
}

// bound is a listener at the stack's address, which a browser that is being started may have for a moment.
func (s *stack) bound() net.Listener {
	s.Helper()
	var config net.ListenConfig
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		listener, err := config.Listen(s.Context(), "tcp", s.addr)
		if err == nil {
			return listener
		}
		if time.Now().After(deadline) {
			s.Fatal(err)
		}
	}
}

// keep runs f until the end of the test, or until it is told to stop.
func (s *stack) keep(f func(context.Context) error) (stop func()) {
	return testenv.Keep(s, s.Logf, "it", f)
}

type bill struct {
	Name string `json:"name"`
}

type statement struct {
	For string `json:"for"`
}

// bills is a service that cannot do some items until it is told that all is well.
type bills struct {
	well  atomic.Bool
	gate  chan struct{} // one for each chunk that may be done; nil: all may
	codes func(key string) (code, message string)
}

// listen runs the service of the endpoint statement.
func (s *stack) listen(b *bills) {
	s.Helper()
	nc := testenv.Conn(s.T, s.ns)
	svc, err := endpoints.New(nc, endpoints.Config{Name: "billing", Version: "1.0.0", Log: zap.NewNop()})
	if err != nil {
		s.Fatal(err)
	}
	err = endpoints.HandleList(svc, "statement", func(ctx context.Context, chunk *endpoints.Chunk[bill, statement]) error {
		if b.gate != nil {
			select {
			case <-b.gate:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for _, item := range chunk.Items() {
			if code, message := b.codes(item.Key); code != "" && !b.well.Load() {
				item.Fail(code, "%s", message)
				continue
			}
			item.Reply(statement{For: item.In.Name})
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	s.keep(svc.Run)
}

// load starts a run of items that are made by their number.
func (s *stack) load(req startstore.LoadRequest, n int, item func(i int) (key, payload string)) workqueue.RunID {
	s.Helper()
	i := 0
	loaded, err := s.node.Runs().Start(s.Context(), req, func(into *startstore.LoadItem) error {
		if i == n {
			return io.EOF
		}
		key, payload := item(i)
		into.Key, into.Payload = key, []byte(payload)
		i++
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	return loaded.Run
}

// request is a run of one step.
func request(name, endpoint string) startstore.LoadRequest {
	return startstore.LoadRequest{Name: name, Plan: endpoint, CreatedBy: "test", Steps: []workqueue.StepSpec{{
		Name: endpoint, Endpoint: endpoint, StepSettings: workqueue.StepSettings{Chunk: 100, InFlight: 4, MaxAttempts: 1,
			Timeout: time.Hour, RetryBackoff: time.Millisecond}, // a chunk may wait for its gate
	}}}
}

// post has bob tell the server something.
func (s *stack) post(path, kind, text string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.url+api.Prefix+path, strings.NewReader(text))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Tranche-Actor", "bob")
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	if said, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode >= http.StatusMultipleChoices {
		s.Fatalf("POST %s: %s %s %v", path, answer.Status, said, err)
	}
}

// ended waits until a run is completed.
func (s *stack) ended(run workqueue.RunID) {
	s.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		view, err := inspect.New(s.store).Run(s.Context(), run)
		if err == nil && view.State == "completed" {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("run %s does not end: %+v, %v", run, view, err)
		}
	}
}

// token makes one of a role.
func (s *stack) token(role access.Role) (secret string) {
	s.Helper()
	secret = access.NewSecret()
	_, err := identity.New(s.store).CreateToken(s.Context(), identity.NewToken{
		Name: fmt.Sprint("the ", role), Role: string(role), Hash: access.HashOf(secret),
	}, "test")
	if err != nil {
		s.Fatal(err)
	}
	return secret
}
