package workqueue_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/start"
)

// fate is what becomes of a commit whose answer its sender never hears.
type fate int

const (
	answerLost fate = iota // PostgreSQL commits
	commitLost             // it never arrives: PostgreSQL rolls back
	commitLate             // it arrives after the sender has looked once for what it left
)

// mishap befalls one commit: that of the first transaction in which a statement has the mark.
type mishap struct {
	mark string
	fate fate

	mu    sync.Mutex
	conn  *mishapConn // that it befell
	looks int         // at what the load left, since then
}

// mishapConn is a connection to PostgreSQL that a mishap may befall.
type mishapConn struct {
	net.Conn
	mishap *mishap
	marked bool
	held   []byte // a commit on its way
}

func (m *mishap) befell() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conn != nil
}

var errReset = errors.New("connection reset by peer")

// lookOfClear is the statement by which a load looks for what it has left.
const lookOfClear = "SELECT sealed_at IS NOT NULL"

// Write recognizes the marked transaction and its commit.
func (c *mishapConn) Write(p []byte) (int, error) {
	m := c.mishap
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == c { // nothing gets through any more
		return len(p), nil
	}
	if m.conn != nil && cancels(p) { // nothing that is about the connection gets through either
		return 0, errReset
	}
	if m.conn != nil && bytes.Contains(p, []byte(lookOfClear)) && bytes.Contains(p, execute) {
		if m.looks++; m.looks == 2 && m.fate == commitLate {
			m.conn.arrive()
		}
	}
	c.marked = c.marked || bytes.Contains(p, []byte(m.mark))
	if m.conn != nil || !c.marked || !commits(p) {
		return c.Conn.Write(p)
	}
	m.conn = c
	switch m.fate {
	case commitLost:
		_ = c.Conn.Close()
	case commitLate:
		c.held = bytes.Clone(p)
	case answerLost:
		return c.Conn.Write(p)
	}
	return len(p), nil
}

// execute is the message that has a statement done, rather than described.
var execute = []byte("E\x00\x00\x00\x09\x00")

// cancels recognizes the request by which pgx, once it has given up a connection, cancels the statement that runs
// there: one that came together with the late commit would undo it.
func cancels(p []byte) bool {
	return bytes.HasPrefix(p, []byte("\x00\x00\x00\x10\x04\xd2\x16\x2e"))
}

// commits tells a flush that has a COMMIT done, alone or behind other statements, from one that asks what it is like.
func commits(p []byte) bool {
	return bytes.Contains(p, []byte("commit\x00")) && (p[0] == 'Q' || bytes.Contains(p, execute))
}

// arrive lets a late commit through, and returns once PostgreSQL has committed.
func (c *mishapConn) arrive() {
	if _, err := c.Conn.Write(c.held); err == nil {
		_, _ = c.Conn.Read(make([]byte, 1024)) // the answer is no one's
	}
	c.held = nil
	_ = c.Conn.Close()
}

func (c *mishapConn) Read(p []byte) (int, error) {
	if c.befallen(commitLate) {
		return 0, errReset
	}
	n, err := c.Conn.Read(p) // an answer that is to be lost means that PostgreSQL has committed
	if c.befallen(c.mishap.fate) {
		_ = c.Conn.Close()
		return 0, errReset
	}
	return n, err
}

func (c *mishapConn) befallen(f fate) bool {
	c.mishap.mu.Lock()
	defer c.mishap.mu.Unlock()
	return c.mishap.conn == c && c.mishap.fate == f
}

// Close leaves a connection open to PostgreSQL whose commit is still on its way.
func (c *mishapConn) Close() error {
	c.mishap.mu.Lock()
	defer c.mishap.mu.Unlock()
	if c.held != nil {
		return nil
	}
	return c.Conn.Close()
}

// setupMishap is setup with a store that a mishap befalls. The bench's own pool is safe from it.
func setupMishap(t *testing.T, m *mishap) *bench {
	t.Helper()
	url := testenv.Database(t)
	config := testenv.Must(pgxpool.ParseConfig(url))(t)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // so that every statement is sent as it is
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &mishapConn{Conn: conn, mishap: m}, nil
	}
	pool := testenv.Must(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	b := &bench{&storetest.Bench{T: t, Pool: testenv.Connect(t, url), Store: database.New(pool)}}
	b.Session = b.Open()
	return b
}

const (
	insertsRun = "INSERT INTO batchrun"
	writesItem = "COPY work_queue"
	sealsRun   = "SET state = 'running'"
)

// heavy yields n items of a mebibyte: nine of them are more than one batch.
func heavy(n int) func(*start.LoadItem) error {
	source := storetest.Keys(storetest.Names(n)...)
	payload := []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	return func(item *start.LoadItem) error {
		err := source(item)
		item.Payload = payload
		return err
	}
}

// PostgreSQL committed, and the answer was lost. A run that is complete stays and the load has succeeded.
func TestLoadWhoseLastAnswerIsLostHasSucceeded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mishap *mishap
		items  int
		source func(int) func(*start.LoadItem) error
	}{
		"a load of one transaction": {&mishap{mark: insertsRun, fate: answerLost}, 10, few},
		"late":                      {&mishap{mark: insertsRun, fate: commitLate}, 10, few},
		"the seal":                  {&mishap{mark: sealsRun, fate: answerLost}, 20, heavy},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupMishap(t, tc.mishap)
			req := storetest.Request()
			req.IdempotencyKey = "k"
			loaded, err := b.TryLoad(req, tc.source(tc.items))
			if !tc.mishap.befell() {
				t.Fatalf("no answer was lost: %v", err)
			}
			if err != nil || loaded.Items != int64(tc.items) || loaded.Existing {
				t.Fatalf("loaded %+v, %v; want the run", loaded, err)
			}
			b.WantState(loaded.Run, "running", 1)
			testenv.Same(t, b.Number(`SELECT count(*) FROM work_queue WHERE run_id = $1`, loaded.Run), tc.items,
				"items of the run")
			b.Check()
			again, err := b.TryLoad(req, tc.source(tc.items))
			if err != nil || !again.Existing || again.Run != loaded.Run {
				t.Errorf("the same key again: %+v, %v; want run %s", again, err, loaded.Run)
			}
			b.Finish(loaded.Run)
			b.WantState(loaded.Run, "completed", 1)
		})
	}
}

func few(n int) func(*start.LoadItem) error { return storetest.Keys(storetest.Names(n)...) }

// A commit in the middle of a load, or one that never arrived: the load fails and leaves nothing. It says that some of
// it may be left only where PostgreSQL may still make the run's row.
func TestLoadThatLostACommitLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mishap *mishap
		source func(*start.LoadItem) error
		unsure bool
	}{
		"a load of one transaction": {&mishap{mark: insertsRun, fate: commitLost}, few(10), true},
		"row, answered":             {&mishap{mark: insertsRun, fate: answerLost}, heavy(20), true},
		"row, late":                 {&mishap{mark: insertsRun, fate: commitLate}, heavy(20), true},
		"row, lost":                 {&mishap{mark: insertsRun, fate: commitLost}, heavy(20), true},
		"batch, answered":           {&mishap{mark: writesItem, fate: answerLost}, heavy(20), false},
		"batch, lost":               {&mishap{mark: writesItem, fate: commitLost}, heavy(20), false},
		"seal, lost":                {&mishap{mark: sealsRun, fate: commitLost}, heavy(20), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupMishap(t, tc.mishap)
			req := storetest.Request()
			req.IdempotencyKey = "k"
			loaded, err := b.TryLoad(req, tc.source)
			if !tc.mishap.befell() {
				t.Fatalf("no commit was lost: %v", err)
			}
			testenv.Fails(t, err, "loaded %+v", loaded)
			uncleared, unsure := errors.AsType[*workqueue.CleanupPendingError](err)
			testenv.Same(t, unsure, tc.unsure, "%v is a CleanupPendingError", err)
			b.WantNothing()
			if unsure {
				if sealed, err := start.New(b.Store).ClearLoad(t.Context(), uncleared.Run); sealed || err != nil {
					t.Errorf("clear: sealed %v, %v", sealed, err)
				}
			}
			if again, err := b.TryLoad(req, few(4)); err != nil || again.Existing {
				t.Errorf("the same key again: %+v, %v; want a new run", again, err)
			}
			b.Check()
		})
	}
}
