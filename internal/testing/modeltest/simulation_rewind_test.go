package modeltest_test

import (
	"bytes"
	"context"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

const (
	// listTables lists all tables with the columns that can be written.
	listTables = `
CREATE TABLE past.tables AS
SELECT c.oid AS original, format('past.%I', c.relname) AS copy,
    (SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
     WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '') AS columns
FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'`

	// copyTables has all rows of one side in the other. Tables that were never written cost nothing.
	copyTables = `
DO $$
DECLARE t record;
BEGIN
    SET LOCAL session_replication_role = replica; -- neither guards nor foreign keys
    FOR t IN SELECT copy, original::regclass AS original, columns, to_regclass(copy) IS NULL AS fresh FROM past.tables
        WHERE pg_relation_size(original) + coalesce(pg_relation_size(to_regclass(copy)), 0) > 0 LOOP
        IF t.fresh THEN
            EXECUTE format('CREATE UNLOGGED TABLE %s AS TABLE %s WITH NO DATA', t.copy, t.original);
        END IF;
        EXECUTE format('DELETE FROM %s', t.TO);
        EXECUTE format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM %3$s', t.TO, t.columns, t.FROM);
    END LOOP;
END $$`

	keepSequences = `
INSERT INTO past.sequences
SELECT format('%I.%I', schemaname, sequencename)::regclass, last_value, last_value IS NOT NULL
FROM pg_sequences WHERE schemaname = 'public'`
	setSequences = `SELECT setval(name, coalesce(at, 1), called) FROM past.sequences`
)

// belief is what has been confirmed to those who use the store, as far as the database remembers it.
type belief struct {
	data    []int // which payload an item has
	erased  []bool
	invalid []bool                    // items that fit no schema: they fail unasked until they are corrected
	taken   map[workqueue.SliceID]int // slots
	ops     *operations               // nil: there is no collector

	known      snapshot
	generation int
	paused     bool
	cancelled  bool
}

func (b *belief) copied() belief {
	c := *b
	c.data, c.erased, c.invalid = slices.Clone(b.data), slices.Clone(b.erased), slices.Clone(b.invalid)
	c.taken, c.ops, c.known.steps = maps.Clone(b.taken), b.ops.copied(), slices.Clone(b.known.steps)
	return c
}

// past is a database as a standby has it that lags.
type past struct {
	belief
	faults map[at]map[workqueue.SliceID]bool
}

func (s *simulation) copyTables(from, to string) {
	s.Exec(strings.NewReplacer("t.FROM", "t."+from, "t.TO", "t."+to).Replace(copyTables))
}

func (s *simulation) backup() {
	s.past.Do(func() {
		s.Exec(`CREATE SCHEMA past`)
		s.Exec(listTables)
		s.Exec(`CREATE TABLE past.sequences (name regclass, at bigint, called boolean)`)
	})
	s.copyTables("original", "copy")
	s.Exec(`DELETE FROM past.sequences`)
	s.Exec(keepSequences)
	s.back = &past{belief: s.belief.copied(), faults: map[at]map[workqueue.SliceID]bool{}}
	for a, t := range s.told {
		s.back.faults[a] = maps.Clone(t.faults)
	}
	s.touched = make([]bool, s.items)
	s.raiseMark()
}

// touch notes that an operator has changed what items are made of. When the database forgets that, what is made of them
// meanwhile may be of either kind.
func (s *simulation) touch(items ...workqueue.Ordinal) {
	for _, o := range items {
		if s.back != nil {
			s.touched[o] = true
		}
	}
}

func (s *simulation) touchAll() {
	for o := range s.items {
		s.touch(workqueue.Ordinal(o))
	}
}

func (s *simulation) raiseMark() {
	mark, err := session.New(s.Store).RaiseMark(s.Context(), s.furthest)
	s.must(err)
	s.furthest = mark.Later(s.furthest)
}

// rewind puts the copy in the place of the database: streams, services and nodes are ahead of it. Until a node notices,
// they continue.
func (s *simulation) rewind() {
	if s.back == nil {
		s.say("(keeps a copy)")
		s.backup()
		return
	}
	s.copyTables("copy", "original")
	s.Exec(setSequences)
	s.belief, s.lease = s.back.belief.copied(), workqueue.Lease{}
	for a, faults := range s.back.faults {
		maps.Copy(s.at(a.step, a.item).faults, faults)
	}
	for o, is := range s.touched {
		s.doubted[o] = s.doubted[o] || is
	}
	s.check()
	for range s.r.IntN(3) {
		s.say("\n    and")
		[]func(*simulation){(*simulation).record, (*simulation).claim, (*simulation).publish,
			(*simulation).settle}[s.r.IntN(4)](s)
		s.check()
	}
	s.passGap()
}

// notReissued counts what continues as if there were no gap: requests sent before it, slices that wait for their time
// under their old ids, which JetStream may know, and sessions.
const notReissued = `
SELECT (SELECT count(*) FROM work_slice WHERE state = 'sent' AND stream_epoch >= (SELECT epoch FROM stream_epoch))
    + (SELECT count(*) FROM work_slice WHERE state = 'scheduled' AND id = ANY ($1))
    + (SELECT count(*) FROM node_session WHERE ended_at IS NULL AND expires_at > tranche_now())`

// passGap is what a node does that notices it, and does once.
func (s *simulation) passGap() {
	known := s.furthest
	known.Epoch = max(known.Epoch, s.epoch)
	var waiting []workqueue.SliceID
	s.must(s.Pool.QueryRow(s.Context(), `SELECT array_agg(id) FROM work_slice WHERE state = 'scheduled'`).Scan(&waiting))
	gap, err := session.New(s.Store).PassGap(s.Context(), known)
	s.must(err)
	again, err := session.New(s.Store).PassGap(s.Context(), known)
	s.must(err)
	if gap == nil || !gap.Lost || again != nil {
		s.failf("the gap is %+v, and then %+v", gap, again)
	}
	if n := s.Number(notReissued, waiting); n > 0 {
		s.failf("%d requests and sessions of before the gap continue", n)
	}
	s.raiseMark()
}

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
