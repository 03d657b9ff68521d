package flush_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// claimLocked adds two operations of a key, and has the node claim it while nobody can read the operations, until the
// transaction is rolled back.
func (b *bundle) claimLocked(t *testing.T, collector string) pgx.Tx {
	t.Helper()
	b.gather(t, collector, nil)
	if _, err := collectorstore.New(b.Store).PauseCollector(t.Context(), collector, "test"); err != nil {
		t.Fatal(err)
	}
	b.addOps(t, collector, 0, 2, 1)
	tx, err := b.Pool.Begin(t.Context())
	if err == nil {
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		_, err = tx.Exec(t.Context(), `LOCK TABLE collector_op IN ACCESS EXCLUSIVE MODE`)
	}
	if err == nil {
		_, err = b.Node.Collectors().ResumeCollector(t.Context(), collector, "test")
	}
	if err != nil {
		t.Fatal(err)
	}
	b.Await(t, "the key is claimed", `SELECT count(flush) = 1 FROM collector_key`)
	return tx
}

// waitingFor finds a statement that waits for a lock, and since when.
const waitingFor = `SELECT coalesce(max(query_start), 'epoch') FROM pg_stat_activity
	WHERE datname = current_database() AND wait_event_type = 'Lock' AND position($1 in query) > 0`

// readsOps is of the statement that reads the operations of flushes; cancelOthers ends what else waits for a lock.
const (
	readsOps     = `unnest($2::int[], $3::text[], $4::int[]) WITH ORDINALITY AS k`
	cancelOthers = `SELECT pg_cancel_backend(pid) FROM pg_stat_activity
	WHERE datname = current_database() AND wait_event_type = 'Lock' AND position($1 in query) = 0`
)

// blocked waits until a statement waits for a lock. over reports whether that one does not wait any more.
func (b *bundle) blocked(t *testing.T, part string) (over func() bool) {
	t.Helper()
	begun := func() (at time.Time) {
		if err := b.Pool.QueryRow(t.Context(), waitingFor, part).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	var first time.Time
	nodetest.Until(t, "a statement waits: "+part, func() bool {
		first = begun()
		return first.Unix() > 0
	})
	return func() bool { return !begun().Equal(first) }
}

// PostgreSQL that does not answer is not waited for without end: what looks for keys, reads operations and sweeps
// collectors begins again, on another connection.
func TestReadsForFlushesComeToAnEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Serve(t, "slow", nodetest.Echo)
	locked := b.claimLocked(t, "slow")
	reads := b.blocked(t, readsOps)
	nodetest.Until(t, "nobody can read the collectors either", func() bool {
		// What sweeps them may wait for the operations, and is to wait for the collectors.
		if _, err := b.Pool.Exec(t.Context(), cancelOthers, readsOps); err != nil {
			t.Fatal(err)
		}
		return pgx.BeginFunc(t.Context(), locked, func(tx pgx.Tx) error { // who waited might be waited for
			_, err := tx.Exec(t.Context(), `LOCK TABLE collector IN ACCESS EXCLUSIVE MODE NOWAIT`)
			return err
		}) == nil
	})
	looks := b.blocked(t, `generate_series(c.settled, c.numbering) AS g (numbering)`)
	sweeps := b.blocked(t, `timed < timing FROM collector ORDER BY id`)
	nodetest.Until(t, "the node does not wait for the operations any more", reads)
	nodetest.Until(t, "the node does not wait for keys that are due any more", looks)
	nodetest.Until(t, "the leader does not wait for the collectors any more", sweeps)
	if err := locked.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Await(t, "everything is flushed", noOps)
}

// A node gets the operations of a key long after it claimed it, and the key is claimed anew by then: it does not ask
// for them twice.
func TestWhatWasClaimedLongAgoIsNotAskedForUnseen(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t, testenv.Pool(t), embedded.NATSConfig{})}
	b.Node = b.StartNodeWith(t, orchestrator.Config{SessionTTL: 10 * time.Second})
	var calls atomic.Int64
	b.Serve(t, "late", func(ctx context.Context, chunk *nodetest.Chunk) error {
		calls.Add(1)
		return nodetest.Echo(ctx, chunk)
	}, endpoints.Concurrency(4))
	locked := b.claimLocked(t, "late")
	var claimed time.Time
	if err := b.Pool.QueryRow(t.Context(), `UPDATE collector_key SET flush_until = tranche_now()
		RETURNING flushed_at`).Scan(&claimed); err != nil {
		t.Fatal(err)
	}
	nodetest.Until(t, "the key is claimed again, and the first claim is old", func() (met bool) {
		err := b.Pool.QueryRow(t.Context(), `SELECT count(flush) = 1 AND tranche_now() > $1::timestamptz + interval '6 s'
			FROM collector_key WHERE flushed_at > $1`, claimed).Scan(&met)
		return err == nil && met
	})
	if err := locked.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Await(t, "everything is flushed", noOps)
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls, want one: that of the claim which held the key", n)
	}
}
