package nodetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
)

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

	store   *database.DB
	nc      *nats.Conn
	ctx     context.Context // ends with the crash
	crash   func()
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
	d.crash = sync.OnceFunc(func() {
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
	own.Faults = fault.At(point, n, d.crash)
	d.Node = testenv.Must(orchestrator.New(d.store, d.nc, own))(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = d.Run(d.ctx) // its session cannot be ended any more
	}()
	t.Cleanup(func() { d.crash(); <-ended })
	WantReady(t, d.Node)
}

func (d *Doomed) Crash() { d.crash() }

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
