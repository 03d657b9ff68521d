package health_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	store "github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// soon is more than anything here takes on a busy machine.
const soon = 2 * time.Minute

// world is a watch over a database and a NATS server of the test's own, without a node at first.
type world struct {
	*testing.T
	pool  *pgxpool.Pool
	store *database.DB
	ns    testenv.Server
	nc    *nats.Conn
	node  *orchestrator.Node
	watch *health.Watch
	last  *health.Report
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, pool: testenv.Pool(t), ns: testenv.NATS(t)}
	w.store, w.nc = database.New(w.pool), testenv.Conn(t, w.ns)
	w.watch = w.look(health.Config{})
	t.Cleanup(func() { t.Logf("the last report: %+v", w.last) })
	return w
}

// look returns another watch, which looks whenever it is asked.
func (w *world) look(cfg health.Config) *health.Watch {
	w.Helper()
	cfg.Every = time.Nanosecond
	if cfg.Store == nil {
		cfg.Store, cfg.DatabaseTimeout = w.store, soon
	}
	if cfg.NC == nil {
		cfg.NC = w.nc
	}
	if cfg.Host == "" {
		cfg.Host = "here"
	}
	watch := testenv.Must(health.New(cfg))(w)
	w.Cleanup(watch.Wait)
	return watch
}

// withNode runs a node, and waits until it is ready.
func (w *world) withNode() {
	w.Helper()
	node, err := orchestrator.New(w.store, w.nc, orchestrator.Config{Version: "test", Host: "here", Grace: time.Second,
		SessionTTL: soon, LeaseTTL: soon, // it leads on when the machine is stalled
		Streams: stream.Config{WorkMaxBytes: 8 << 20, ReplyMaxBytes: 8 << 20, EventMaxBytes: 8 << 20}})
	testenv.NoError(w, err)
	w.node = node
	w.keep(node.Run)
	nodetest.WantReady(w.T, node)
}

// leads has a node that does nothing lead permanently. It is never late, however slow this machine is: there is no
// condition but what the test brings about.
func (w *world) leads() {
	w.Helper()
	testenv.Must(session.New(w.store).Lead(w.Context(), w.session(), time.Hour))(w)
	w.exec(`UPDATE node_session SET heartbeat_at = tranche_now() + interval '1 hour'`)
}

// keep runs f until the end of the test, or until it is told to stop.
func (w *world) keep(f func(context.Context) error) (stop func()) {
	return testenv.Keep(w, w.Logf, "it", f)
}

// serve runs a service whose handler does what handle says with each item, until it is told to stop.
func (w *world) serve(endpoint string, handle func(*endpoints.Item[any, any])) (stop func()) {
	w.Helper()
	svc, err := endpoints.New(testenv.Conn(w.T, w.ns), endpoints.Config{Name: "it", Version: "1.0.0", Log: zap.NewNop()})
	testenv.NoError(w, err)
	err = endpoints.HandleList(svc, endpoint, func(_ context.Context, chunk *endpoints.Chunk[any, any]) error {
		for _, item := range chunk.Items() {
			handle(item)
		}
		return nil
	})
	testenv.NoError(w, err)
	return w.keep(svc.Run)
}

func request(endpoint string) start.LoadRequest {
	return start.LoadRequest{Plan: endpoint, CreatedBy: "test", Steps: []workqueue.StepSpec{{
		Name: endpoint, Endpoint: endpoint, StepSettings: workqueue.StepSettings{Chunk: 10, InFlight: 4, MaxAttempts: 1,
			Timeout: time.Minute, RetryBackoff: time.Millisecond},
	}}}
}

func (w *world) start(req start.LoadRequest, n int) workqueue.RunID {
	w.Helper()
	loaded := testenv.Must(w.node.Runs().Start(w.Context(), req, nodetest.Items(n)))(w)
	return loaded.Run
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	testenv.Must(w.pool.Exec(w.Context(), sql, args...))(w)
}

func seen(r *health.Report, kind store.Kind, subject string) (store.Condition, bool) {
	i := slices.IndexFunc(r.Conditions, func(c store.Condition) bool { return c.Kind == kind && c.Subject == subject })
	if i < 0 {
		return store.Condition{}, false
	}
	return r.Conditions[i], true
}

func (w *world) report(watch *health.Watch) *health.Report {
	w.Helper()
	if w.node != nil {
		w.node.WakeLeaderTask("sweep") // its lease lives for so long that by itself it sweeps seldom
	}
	watch.Again() // what a look has found that began earlier is not an answer, however slow this machine is
	w.last = testenv.Must(watch.Report(w.Context()))(w)
	return w.last
}

// appears waits for a condition that names the words, as it may not at first: services that are busy are heard late. It
// must say all that one should.
func (w *world) appears(kind store.Kind, subject string, severity store.Severity, words ...string) store.Condition {
	w.Helper()
	return w.appearsTo(w.watch, kind, subject, severity, words...)
}

func (w *world) appearsTo(
	watch *health.Watch, kind store.Kind, subject string, severity store.Severity, words ...string,
) store.Condition {
	w.Helper()
	var c store.Condition
	var text string
	testenv.Until(w, soon, fmt.Sprintf("%s of %s is %s and says %q", kind, subject, severity, words), func() (ok bool) {
		c, ok = seen(w.report(watch), kind, subject)
		text = c.Title + "\n" + c.Detail + "\n" + c.Remedy
		lacks := func(word string) bool { return !strings.Contains(text, word) }
		return ok && c.Severity == severity && !slices.ContainsFunc(words, lacks)
	})
	if c.Title == "" || c.Detail == "" || c.Remedy == "" || strings.Contains(text, "<no value>") ||
		strings.Contains(text, "template:") || c.Since.IsZero() || c.Since.After(w.last.At) {
		w.Errorf("%s of %s lacks something, at %s: %+v", kind, subject, w.last.At, c)
	}
	return c
}

// goes waits until a condition is not told of any more, be it muted or not.
func (w *world) goes(kind store.Kind, subject string) {
	w.Helper()
	w.goesFrom(w.watch, kind, subject)
}

func (w *world) goesFrom(watch *health.Watch, kind store.Kind, subject string, unseen ...store.Kind) {
	w.Helper()
	told := func(c store.Condition) bool { return c.Kind == kind && c.Subject == subject }
	testenv.Until(w, soon, fmt.Sprintf("%s of %s goes", kind, subject), func() bool {
		r := w.report(watch)
		missed := slices.ContainsFunc(unseen, func(k store.Kind) bool { return slices.Contains(r.Unseen, k) })
		return !missed && !slices.ContainsFunc(slices.Concat(r.Conditions, r.Muted), told)
	})
}

// heard waits until a look that would have found that no service listens on an endpoint does not.
func (w *world) heard(endpoint string) {
	w.Helper()
	w.goesFrom(w.watch, store.NoListeners, endpoint, store.NoListeners)
}

func (w *world) calms() {
	w.Helper()
	testenv.Until(w, soon, "all is well", func() bool {
		r := w.report(w.watch)
		return r.Status == "ok" && len(r.Conditions) == 0
	})
}
