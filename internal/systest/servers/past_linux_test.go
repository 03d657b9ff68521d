package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/start"
)

const (
	items   = 1200
	chunk   = 10
	timeout = 12 * time.Minute // of a step: nothing here is to wait for it
	pause   = 60 * time.Millisecond
)

// past is nodes and a service on a database that is about to go back in time.
type past struct {
	*testing.T
	url   string
	ns    testenv.Server
	nodes []func()
	node  *orchestrator.Node
	plans bool // the nodes start what schedules want

	mu       sync.Mutex
	executed map[string]int // items by key: what the service did, outside the system
	most     int            // of them, until it waits; 0: it does not
}

func setupPast(t *testing.T, url string) *past {
	t.Helper()
	w := &past{T: t, url: url, ns: testenv.NATS(t), executed: map[string]int{}}
	w.serve()
	return w
}

func (w *past) serve() {
	w.Helper()
	svc := testenv.Must(endpoints.New(testenv.Conn(w, w.ns), endpoints.Config{Name: "test", Version: "1.0.0"}))(w)
	handle := func(ctx context.Context, c *endpoints.Chunk[account, statement]) error {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := w.turn(ctx); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, item := range c.Items() {
			w.executed[item.In.ID]++
			item.Reply(statement{Of: item.In.ID})
		}
		return nil
	}
	testenv.NoError(w, endpoints.HandleList(svc, "statement", handle, endpoints.Concurrency(2)))
	w.keep("service", svc.Run)
}

// turn waits while the service has done as much as it may.
func (w *past) turn(ctx context.Context) error {
	for {
		w.mu.Lock()
		may := w.most == 0 || len(w.executed) < w.most
		w.mu.Unlock()
		if may {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// upTo has the service wait once it has done so many items; 0: not any more.
func (w *past) upTo(most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = most
}

// keep has f going until the end of the test, or until it is stopped.
func (w *past) keep(what string, f func(context.Context) error) (stop func()) {
	return testenv.Keep(w, w.Logf, what, f) // that a node without its database cannot hand back is no fault
}

func (w *past) start() {
	w.Helper()
	store, release, err := database.Open(w.Context(), w.url, database.PoolConfig{})
	testenv.NoError(w, err)
	w.Cleanup(release)
	cfg := orchestrator.Config{Version: "test", Grace: time.Second,
		Log:     zaptest.NewLogger(w, zaptest.Level(zap.WarnLevel)),
		Streams: stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}}
	plans := &planner{past: w, store: store}
	if w.plans {
		cfg.LeaderTasks = append(cfg.LeaderTasks, plans.task())
	}
	node := testenv.Must(orchestrator.New(store, testenv.Conn(w, w.ns), cfg))(w)
	plans.Node = node
	w.node = node
	w.nodes = append(w.nodes, w.keep("node", node.Run))
	select {
	case <-node.Ready():
	case <-time.After(limit):
		w.Fatal("the node did not get ready")
	}
}

func (w *past) stopNodes() {
	var all sync.WaitGroup
	for _, stop := range w.nodes {
		all.Go(stop)
	}
	all.Wait()
	w.nodes = nil
}

func (w *past) run(name string, n int) workqueue.RunID {
	w.Helper()
	loaded := testenv.Must(w.node.Runs().Start(w.Context(), request(name), keyed(name, 0, n)))(w)
	return loaded.Run
}

func request(name string) start.LoadRequest {
	return start.LoadRequest{Plan: name, CreatedBy: "test",
		Steps: []workqueue.StepSpec{{Name: "statement", Endpoint: "statement",
			StepSettings: workqueue.StepSettings{Chunk: chunk, InFlight: 8, MaxAttempts: 1, Timeout: timeout}}}}
}

// keyed yields the items of a name with the numbers first to end-1.
func keyed(name string, first, end int) func(*start.LoadItem) error {
	return func(item *start.LoadItem) error {
		if first == end {
			return io.EOF
		}
		item.Key = fmt.Sprintf("%s-%d", name, first)
		item.Payload = fmt.Appendf(nil, `{"id":%q}`, item.Key)
		first++
		return nil
	}
}

// number asks the database at url, over a connection of its own.
func (w *past) number(url, sql string, args ...any) int {
	w.Helper()
	conn := testenv.Must(pgx.Connect(context.Background(), url))(w)
	defer func() { _ = conn.Close(context.Background()) }()
	return testenv.Number(w, conn, sql, args...)
}

const (
	doneOf   = `SELECT coalesce(sum(bit_count(done | failed)), 0) FROM work_block WHERE run_id = $1`
	beatNow  = `SELECT counter FROM database_mark`
	madeRuns = `SELECT count(*) FROM batchrun WHERE id = $1`
)

func (w *past) until(what string, met func() bool) { w.Helper(); testenv.Until(w, limit, what, met) }

// wantSound waits for a run's end and holds it against the service's ledger, its results and the doctor.
func (w *past) wantSound(url, name string, run workqueue.RunID, n int) {
	w.Helper()
	begun := time.Now()
	const ended = `SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed' AND done = items`
	w.until("run "+name+" completes", func() bool { return w.number(url, ended, run) == 1 })
	w.Logf("%s completed %s after the database was back", name, time.Since(begun).Round(time.Millisecond))
	right := w.number(url, `SELECT count(*) FROM work_result p JOIN work_queue q USING (run_id, ordinal)
		WHERE run_id = $1 AND convert_from(p.result, 'utf8')::json->>'of' = q.item_key`, run)
	testenv.Same(w, right, n, "%s: parts that are right", name)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range n {
		if w.executed[fmt.Sprintf("%s-%d", name, i)] == 0 {
			w.Errorf("item %d of %s was never executed", i, name)
		}
	}
}

func (w *past) wantInvariants(url string) {
	w.Helper()
	nodetest.WantInvariants(w.T, database.New(testenv.Connect(w, url)))
}

// completions returns the ids under which the completion of a run, or of a tracker's batch, was told.
func (w *past) completions(kind string, of fmt.Stringer) (ids map[string]int) {
	w.Helper()
	ids = map[string]int{}
	js := testenv.Must(jetstream.New(testenv.Conn(w, w.ns)))(w)
	consumer := testenv.Must(js.OrderedConsumer(w.Context(), wire.StreamEvent, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{wire.EventSubject(kind + ".completed")}}))(w)
	for patience := time.Minute; ; {
		msg, err := consumer.Next(jetstream.FetchMaxWait(patience))
		if errors.Is(err, nats.ErrTimeout) {
			return ids
		}
		testenv.NoError(w, err)
		var event struct {
			ID    string `json:"id"`
			Run   string `json:"run"`
			Batch string `json:"batch"`
		}
		testenv.NoError(w, json.Unmarshal(msg.Data(), &event))
		if event.Run+event.Batch == of.String() {
			ids[event.ID]++
			patience = 2 * time.Second // for another one
		}
	}
}
