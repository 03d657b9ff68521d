package nodetest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Size and Halfway are of the runs that something happens to.
const (
	Size    = 6_000
	Halfway = 2_000
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

// Grace is what a stop may take, with the end of the session on a machine that stands still for some seconds.
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
	node, err := orchestrator.New(store, nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
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
