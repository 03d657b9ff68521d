package orchestrator_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/start"
)

// size and halfway are of the runs that something happens to.
const (
	size    = 6_000
	halfway = 2_000
)

// small is a request whose run takes some dozens of slices.
func small(endpoint string) start.LoadRequest {
	req := request(endpoint)
	req.Steps[0].Chunk = 100
	return req
}

// patient has the deadlines of tests in which a re-issue at the deadline would hide that nothing else re-issues.
func patient() start.LoadRequest {
	req := small("statement")
	req.Steps[0].Timeout = 10 * time.Minute
	return req
}

// sessionLife is longer than a busy machine keeps a heartbeat waiting: what a node had claimed is done again when its
// session expires.
const sessionLife = time.Minute

func testConfig(t *testing.T) orchestrator.Config {
	t.Helper()
	return orchestrator.Config{Log: zaptest.NewLogger(t), Version: "test", Grace: 5 * time.Second, SessionTTL: sessionLife,
		Streams: stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}}
}

// member is a node that a test may stop, with its own way to the database and to NATS.
type member struct {
	*orchestrator.Node
	leave func() // tells it to stop
	stop  func() error
}

// join runs another node.
func (b *bundle) join(t *testing.T, store *database.DB, nc *nats.Conn, cfg orchestrator.Config) *member {
	t.Helper()
	node, err := orchestrator.New(store, nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx) }()
	var stopped bool
	m := &member{Node: node, leave: cancel, stop: func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}}
	t.Cleanup(func() { _ = m.stop() })
	select {
	case <-node.Ready():
	case <-time.After(stuck):
		t.Fatal("the node did not get ready")
	}
	return m
}

// until polls for a condition, with a deadline.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	deadline := time.After(stuck)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("waited in vain until " + what)
		}
	}
}
