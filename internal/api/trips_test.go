package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

const (
	// maxTrips is how many round trips to the database a run of ten items may take, one at a time, from its POST to
	// its completion event.
	maxTrips = 15
	// tripTime is so long that what else a run takes is little beside it.
	tripTime  = 80 * time.Millisecond
	tripWarm  = 40 // runs before anything is measured: statements are prepared on each connection once
	tripTries = 5  // of which the fastest counts: others may have met a poll or a heartbeat
)

// far is a whole server, with a node, whose database is a long way off, and a service.
type far struct {
	*apitest.Bench
	proxy     *testenv.Proxy
	asked     *asked
	completed chan *nats.Msg
	node      *orchestrator.Node
	nc        *nats.Conn
	forget    func() // what the server knows of who asks
	watch     *testenv.Watch
}

func setupFar(t *testing.T) *far {
	t.Helper()
	config, err := pgxpool.ParseConfig(testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	f := &far{asked: &asked{}, completed: make(chan *nats.Msg, 1), forget: func() {}, watch: testenv.NewWatch(t)}
	target := net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port)))
	if filepath.IsAbs(config.ConnConfig.Host) {
		target = filepath.Join(config.ConnConfig.Host, fmt.Sprintf(".s.PGSQL.%d", config.ConnConfig.Port))
	}
	f.proxy = testenv.NewProxy(t, target)
	f.proxy.Delay(0)
	config.ConnConfig.Tracer, config.MaxConns = f.asked, database.DefaultMaxConns
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", f.proxy.Addr())
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	f.Bench = &apitest.Bench{T: t, Pool: pool, Store: database.New(pool)}
	ns := testenv.NATS(t)
	node, err := orchestrator.New(f.Store, testenv.Conn(t, ns), orchestrator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	nc := testenv.Conn(t, ns)
	service, err := endpoints.New(nc, endpoints.Config{Name: "echo", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	type chunk = endpoints.Chunk[json.RawMessage, json.RawMessage]
	if err := endpoints.HandleList(service, "echo", func(_ context.Context, c *chunk) error {
		for _, item := range c.Items() {
			item.Reply(item.In)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	f.during(node.Run)
	select {
	case <-node.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the node does not get ready")
	}
	f.during(service.Run)
	_, err = nc.Subscribe(wire.EventSubject("run.completed"), func(m *nats.Msg) { f.completed <- m })
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	f.node, f.nc = node, nc
	f.Over(api.NodeOf(node), nc, api.Config{})
	return f
}

// during runs something for as long as the test.
func (f *far) during(run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(f.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = run(ctx) }) // that it was stopped
	f.Cleanup(func() { stop(); running.Wait() })
}

// run starts a run of ten items and waits for its completion event. It returns how long that took.
func (f *far) run(header ...string) time.Duration {
	f.Helper()
	items := "id\n" + strings.Join(strings.Split("abcdefghij", ""), "\n")
	f.forget()
	f.asked.clear()
	began := f.watch.Ran()
	code, text := f.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&key=id", strings.NewReader(items), header...)
	if code != http.StatusCreated {
		f.Fatalf("start: %d %s", code, text)
	}
	var started runs.Started
	if err := json.Unmarshal(text, &started); err != nil {
		f.Fatal(err)
	}
	for over := time.After(time.Minute); ; {
		select {
		case m := <-f.completed:
			took := f.watch.Ran() - began
			if strings.Contains(string(m.Data), started.Run.String()) { // one of an earlier run may come again
				return took
			}
		case <-over:
			f.Fatal("the run does not complete")
		}
	}
}

// fastest is how long the fastest of some runs took, how long a round trip did meanwhile, and what was asked.
func (f *far) fastest(header ...string) (best, trip time.Duration, asked string) {
	f.Helper()
	for range tripTries {
		took := f.run(header...)
		if best == 0 || took < best {
			best, trip, asked = took, f.asked.median(), f.asked.String()
		}
	}
	return best, trip, asked
}

// trips is how many round trips a run takes, once it is warm, one at a time: by how much longer it takes when
// each is longer. The log has what was asked of the database, and when.
func (f *far) trips(header ...string) float64 {
	f.Helper()
	f.proxy.Delay(0)
	for range tripWarm {
		f.run(header...)
	}
	near, _, _ := f.fastest(header...)
	f.proxy.Delay(tripTime / 2)
	for range 2 { // on the connections that are needed now
		f.run(header...)
	}
	away, trip, asked := f.fastest(header...)
	trip = max(trip, tripTime) // a slow machine makes it longer
	n := float64(away-near) / float64(trip)
	f.Logf("%.1f round trips: %s with the database beside it, %s with one of %s\n%s", n, near, away, trip, asked)
	return n
}

// A run of ten items takes few round trips, one at a time, whoever asks for it.
func TestARunTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	f := setupFar(t)
	if n := f.trips(); n > maxTrips {
		t.Errorf("a run of ten items takes %.1f round trips from its POST to its completion event; %d are allowed", n,
			maxTrips)
	}
	gate, err := access.New(identity.New(f.Store), access.Config{})
	if err != nil {
		t.Fatal(err)
	}
	f.Gated = true
	f.Over(api.NodeOf(f.node), f.nc, api.Config{Access: gate})
	f.forget = gate.Forget // no one has asked for a while
	secret := f.Token("ann", access.Operator, 0).Secret
	if n := f.trips("Authorization", "Bearer "+secret); n > maxTrips+1 {
		t.Errorf("with a token it takes %.1f; one more is allowed, to look the token up", n)
	}
}

// asked is what is asked of the database, and when.
type asked struct {
	mu    sync.Mutex
	since time.Time
	all   []*question
}

type question struct {
	conn       uint32
	begin, end time.Duration
	what       []string
}

type questionKey struct{}

func (a *asked) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.since, a.all = time.Now(), nil
}

func (a *asked) begin(ctx context.Context, conn *pgx.Conn, sql ...string) context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := &question{conn: conn.PgConn().PID(), begin: time.Since(a.since)}
	for _, s := range sql {
		s = strings.Join(strings.Fields(s), " ")
		q.what = append(q.what, s[:min(len(s), 40)])
	}
	a.all = append(a.all, q)
	return context.WithValue(ctx, questionKey{}, q)
}

func (a *asked) end(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q, ok := ctx.Value(questionKey{}).(*question); ok {
		q.end = time.Since(a.since)
	}
}

// TraceQueryStart and the others are how pgx tells.
func (a *asked) TraceQueryStart(ctx context.Context, c *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	return a.begin(ctx, c, d.SQL)
}
func (a *asked) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) { a.end(ctx) }

func (a *asked) TraceBatchStart(ctx context.Context, c *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	var sql []string
	for _, q := range d.Batch.QueuedQueries {
		sql = append(sql, q.SQL)
	}
	return a.begin(ctx, c, sql...)
}
func (a *asked) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData)     {}
func (a *asked) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) { a.end(ctx) }

// median is how long half of the questions took that have been answered.
func (a *asked) median() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	var took []time.Duration
	for _, q := range a.all {
		if q.end > 0 {
			took = append(took, q.end-q.begin)
		}
	}
	slices.Sort(took)
	if len(took) == 0 {
		return 0
	}
	return took[len(took)/2]
}

// String lists it in order.
func (a *asked) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	for _, q := range a.all {
		fmt.Fprintf(&b, "%5d to %5d ms, connection %d: %s\n", q.begin.Milliseconds(), q.end.Milliseconds(), q.conn,
			strings.Join(q.what, " | "))
	}
	return b.String()
}
