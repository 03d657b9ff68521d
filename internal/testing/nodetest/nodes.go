package nodetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Items of a run during which something breaks, and where it does.
const (
	Size    = 3_000
	Halfway = 1_000
)

// Small returns a request whose run takes some dozens of slices.
func Small(endpoint string) start.LoadRequest {
	req := Request(endpoint)
	req.Steps[0].Chunk = 100
	return req
}

// Patient returns a request with a timeout long enough not to mask other reissues.
func Patient() start.LoadRequest {
	req := Small("statement")
	req.Steps[0].Timeout = 10 * time.Minute
	return req
}

// SessionLife is longer than a busy machine delays a heartbeat, since an expired session's claims are repeated.
const SessionLife = time.Minute

// Grace is how long a stop may take, including the end of the session on a machine stalled for some seconds.
const Grace = 20 * time.Second

// Config returns the settings of a node for [Bundle.Join].
func Config(t *testing.T) orchestrator.Config {
	t.Helper()
	return orchestrator.Config{Log: zaptest.NewLogger(t), Version: "test", Grace: Grace, SessionTTL: SessionLife,
		Streams: stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}}
}

// Member is a node that a test may stop, with its own connections to the database and NATS.
type Member struct {
	*orchestrator.Node
	Leave func() // starts the stop
	Stop  func() error
}

func (b *Bundle) Join(t *testing.T, store *database.DB, nc *nats.Conn, cfg orchestrator.Config) *Member {
	t.Helper()
	node := testenv.Must(orchestrator.New(store, nc, cfg))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx) }()
	m := &Member{Node: node, Leave: cancel, Stop: sync.OnceValue(func() error {
		cancel()
		return <-ended
	})}
	t.Cleanup(func() { _ = m.Stop() })
	WantReady(t, node)
	return m
}

// Until polls until a condition is met, at most [Stuck].
func Until(t *testing.T, what string, met func() bool) {
	t.Helper()
	testenv.Until(t, Stuck, what, met)
}

// answered is shorter than Stuck: an answer of JetStream may be lost with its server, and the test retries.
const answered = time.Minute

func (b *Bundle) JS(t *testing.T) jetstream.JetStream {
	t.Helper()
	return JetStream(t, b.NC)
}

// JetStream returns JetStream over a connection, with a long timeout.
func JetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	return testenv.Must(jetstream.New(nc, jetstream.WithDefaultTimeout(answered)))(t)
}

// Letters returns the dead letters, newest first.
func (b *Bundle) Letters(t *testing.T) []deadletter.DeadLetter {
	t.Helper()
	return testenv.Must(deadletter.New(b.Store).DeadLetters(t.Context(), deadletter.DeadFilter{}))(t).Letters
}

// Buried waits for a number of dead letters.
func (b *Bundle) Buried(t *testing.T, n int) []deadletter.DeadLetter {
	t.Helper()
	Until(t, "the letters are buried", func() bool { return len(b.Letters(t)) >= n })
	all := b.Letters(t)
	testenv.MustSame(t, len(all), n, "buried letters")
	return all
}

func (b *Bundle) Number(t *testing.T, sql string, args ...any) int {
	t.Helper()
	return testenv.Number(t, b.Pool, sql, args...)
}

func (b *Bundle) ErrorOf(t *testing.T, run workqueue.RunID, key string) string {
	t.Helper()
	var text string
	err := b.Pool.QueryRow(t.Context(), `SELECT p.error_code || ': ' || p.error_message FROM work_result p
		JOIN work_queue q USING (run_id, ordinal) WHERE run_id = $1 AND item_key = $2 AND p.error_code IS NOT NULL`,
		run, key).Scan(&text)
	if err != nil {
		t.Errorf("%s: %v", key, err)
	}
	return text
}

func (b *Bundle) Await(t *testing.T, what, query string) {
	t.Helper()
	Until(t, what, func() (is bool) {
		testenv.NoError(t, b.Pool.QueryRow(t.Context(), query).Scan(&is))
		return is
	})
}

func (b *Bundle) Exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	testenv.Must(b.Pool.Exec(t.Context(), sql, args...))(t)
}

// Through returns a store that connects through a proxy. PostgreSQL ends transactions of a silent node after idle.
func (b *Bundle) Through(t *testing.T, idle time.Duration) (*database.DB, *testenv.Proxy) {
	t.Helper()
	at, proxy := testenv.Through(t, b.Pool.Config().ConnString())
	var store *database.DB
	Until(t, "PostgreSQL is reached in time", func() bool {
		opened, release, err := database.Open(t.Context(), at, database.PoolConfig{IdleInTransaction: idle})
		if err != nil {
			t.Log(err)
			return false
		}
		t.Cleanup(release)
		store = opened
		return true
	})
	return store, proxy
}

// Doomed is a node that crashes, as by SIGKILL, within the test's process: its connections are cut and its context
// ends. What it has sent remains in PostgreSQL and JetStream. Nothing it does later reaches either, so it hands
// nothing back. Functions of the test that it calls check [Doomed.Dead].
type Doomed struct {
	*orchestrator.Node // once started

	Crash func()

	store   *database.DB
	nc      *nats.Conn
	ctx     context.Context // ends with the crash
	crashed chan struct{}
}

func (b *Bundle) Doom(t *testing.T) *Doomed {
	t.Helper()
	d := &Doomed{crashed: make(chan struct{})}
	var toDatabase, toNATS *testenv.Proxy
	d.store, toDatabase = b.Through(t, time.Minute)
	d.nc, toNATS = testenv.DialThrough(t, b.NS)
	ctx, cancel := context.WithCancel(context.Background())
	d.ctx = ctx
	d.Crash = sync.OnceFunc(func() {
		toDatabase.Cut()
		toNATS.Cut()
		cancel()
		close(d.crashed)
	})
	return d
}

// Start runs the node until it passes a point for the n-th time, until Crash, or until the test ends.
func (d *Doomed) Start(t *testing.T, point string, n int, cfg orchestrator.Config) {
	t.Helper()
	own := Config(t)
	own.Grace, own.ClaimSlices, own.RecordBatch, own.LocalWorkers = 10*time.Millisecond, 4, 2, 4
	own.Locals, own.LeaseTTL = cfg.Locals, cfg.LeaseTTL
	own.Faults = fault.At(point, n, d.Crash)
	d.Node = testenv.Must(orchestrator.New(d.store, d.nc, own))(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = d.Run(d.ctx) // its session cannot be ended any more
	}()
	t.Cleanup(func() { d.Crash(); <-ended })
	WantReady(t, d.Node)
}

func (d *Doomed) Dead() bool { return d.ctx.Err() != nil }

// Await waits until the node has crashed, and expires its session and lease, so that no test waits for that.
func (d *Doomed) Await(t *testing.T, b *Bundle) {
	t.Helper()
	select {
	case <-d.crashed:
	case <-time.After(Stuck):
		t.Fatal("the fault did not fire")
	}
	b.Exec(t, `UPDATE node_session SET expires_at = tranche_now() WHERE id = $1 AND ended_at IS NULL`, d.Session())
	b.Exec(t, `UPDATE leader SET expires_at = tranche_now() WHERE session_id = $1`, d.Session())
}
