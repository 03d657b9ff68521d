package nodetest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Size and Halfway are of the runs that something happens to.
const (
	Size    = 3_000
	Halfway = 1_000
)

// Small is a request whose run takes some dozens of slices.
func Small(endpoint string) start.LoadRequest {
	req := Request(endpoint)
	req.Steps[0].Chunk = 100
	return req
}

// Patient has the deadlines of tests in which a re-issue at the deadline would hide that nothing else re-issues.
func Patient() start.LoadRequest {
	req := Small("statement")
	req.Steps[0].Timeout = 10 * time.Minute
	return req
}

// SessionLife is longer than a busy machine keeps a heartbeat waiting: what a node had claimed is done again when its
// session expires.
const SessionLife = time.Minute

// Grace is what a stop may take, with the end of the session on a machine that is stalled for some seconds.
const Grace = 20 * time.Second

// Config is of a node that the test joins by [Bundle.Join].
func Config(t *testing.T) orchestrator.Config {
	t.Helper()
	return orchestrator.Config{Log: zaptest.NewLogger(t), Version: "test", Grace: Grace, SessionTTL: SessionLife,
		Streams: stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}}
}

// Member is a node that a test may stop, with its own way to the database and to NATS.
type Member struct {
	*orchestrator.Node
	Leave func() // tells it to stop
	Stop  func() error
}

// Join runs another node.
func (b *Bundle) Join(t *testing.T, store *database.DB, nc *nats.Conn, cfg orchestrator.Config) *Member {
	t.Helper()
	node := testenv.Must(orchestrator.New(store, nc, cfg))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx) }()
	var stopped bool
	m := &Member{Node: node, Leave: cancel, Stop: func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}}
	t.Cleanup(func() { _ = m.Stop() })
	select {
	case <-node.Ready():
	case <-time.After(Stuck):
		t.Fatal("the node did not get ready")
	}
	return m
}

// Until polls for a condition, with a deadline.
func Until(t *testing.T, what string, met func() bool) {
	t.Helper()
	testenv.Until(t, Stuck, what, met)
}

// answered is how long JetStream may take for an answer to a test: less than Stuck, as an answer may be lost with its
// server, and is asked for again.
const answered = time.Minute

// JS is JetStream, over the connection of the test.
func (b *Bundle) JS(t *testing.T) jetstream.JetStream {
	t.Helper()
	return JetStream(t, b.NC)
}

// JetStream is what answers over a connection, however slow the machine is.
func JetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js := testenv.Must(jetstream.New(nc, jetstream.WithDefaultTimeout(answered)))(t)
	return js
}

// Letters returns what is buried, newest first.
func (b *Bundle) Letters(t *testing.T) []deadletter.DeadLetter {
	t.Helper()
	page := testenv.Must(deadletter.New(b.Store).DeadLetters(t.Context(), deadletter.DeadFilter{}))(t)
	return page.Letters
}

// Buried waits for a number of letters.
func (b *Bundle) Buried(t *testing.T, n int) []deadletter.DeadLetter {
	t.Helper()
	Until(t, "the letters are buried", func() bool { return len(b.Letters(t)) >= n })
	all := b.Letters(t)
	if len(all) != n {
		t.Fatalf("%d letters are buried; want %d", len(all), n)
	}
	return all
}

// Number runs a query that returns one.
func (b *Bundle) Number(t *testing.T, sql string, args ...any) int {
	t.Helper()
	return testenv.Number(t, b.Pool, sql, args...)
}

// ErrorOf returns why an item failed.
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

// Await waits until a query finds something true.
func (b *Bundle) Await(t *testing.T, what, query string) {
	t.Helper()
	Until(t, what, func() (is bool) {
		testenv.NoError(t, b.Pool.QueryRow(t.Context(), query).Scan(&is))
		return is
	})
}

// Exec runs a statement.
func (b *Bundle) Exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	testenv.Must(b.Pool.Exec(t.Context(), sql, args...))(t)
}
