package modeltest_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/database"
)

// fuse cuts a connection to PostgreSQL at one of the next flushes that have statements executed.
type fuse struct {
	mu      sync.Mutex
	armed   bool // in the middle of a cut
	flushes int  // until it burns; 0: it does not
	arrives bool // PostgreSQL does what the last flush asks for, and its answer is lost
	burnt   bool
}

// fusedConn is a connection to PostgreSQL behind a fuse.
type fusedConn struct {
	net.Conn
	fuse *fuse
	dead bool
}

// execute is the message that has a statement executed, rather than prepared.
var execute = []byte("E\x00\x00\x00\x09\x00")

func (c *fusedConn) Write(p []byte) (int, error) {
	f := c.fuse
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.flushes > 0 && bytes.Contains(p, execute) {
		f.flushes--
		c.dead = f.flushes == 0
	}
	if !c.dead {
		return c.Conn.Write(p)
	}
	f.burnt = true
	if !f.arrives {
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// Read loses the answer to the last flush. That it has come means that PostgreSQL has done what was asked.
func (c *fusedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.fuse.mu.Lock()
	defer c.fuse.mu.Unlock()
	if !c.dead {
		return n, err
	}
	_ = c.Conn.Close()
	return 0, net.ErrClosed
}

// setupFused returns a bench with a store whose connections have a fuse. The bench's own pool has none.
func setupFused(t *testing.T) *bench {
	t.Helper()
	url := testenv.Database(t) + "&plan_cache_mode=force_generic_plan" // plans would take half of the time
	config := testenv.Must(pgxpool.ParseConfig(testenv.Serving(t, url)))(t)
	f := &fuse{}
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &fusedConn{Conn: conn, fuse: f}, nil
	}
	pool := testenv.Must(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	return &bench{Bench: &storetest.Bench{T: t, Pool: testenv.Connect(t, url), Store: database.New(pool)}, fuse: f}
}

// cutOff is how a move ends whose connection was cut.
type cutOff struct{}

// cut has a node crash in the middle of a transaction, or when PostgreSQL has committed it and the answer is lost.
func (s *simulation) cut() {
	n := s.node()
	s.fuse.mu.Lock()
	s.fuse.armed, s.fuse.flushes, s.fuse.arrives = true, 1+s.r.IntN(5), s.r.IntN(2) == 0
	s.fuse.mu.Unlock()
	defer func() {
		r := recover()
		s.fuse.mu.Lock()
		s.fuse.armed, s.fuse.flushes, s.fuse.burnt = false, 0, false
		s.fuse.mu.Unlock()
		if _, is := r.(cutOff); !is && r != nil {
			panic(r)
		} else if is {
			s.say("and is cut off")
			s.Until("PostgreSQL has seen it", func() bool { return s.Number(openTransactions) == 0 })
			s.restart(n)
		}
	}()
	switch s.r.IntN(5) {
	case 0:
		s.claimFor(n)
	case 1:
		s.sweepBy(n)
	case 2:
		if s.ops != nil {
			s.flushFor(n)
		}
	default:
		s.record()
	}
}

const openTransactions = `
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename <> current_user AND state <> 'idle'`
