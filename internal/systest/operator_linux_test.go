package systest

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/tools/faultyservice"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	// stallAction has a transaction that notes an action wait in its COMMIT, for a lock that the test holds. The
	// constraint is deferred, so all that the transaction does is done by then. It waits for as long as the test does.
	stallAction = `
CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql SET lock_timeout TO 0 AS
$$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER stall AFTER INSERT ON audit_log DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION stall()`
	unstallAction = `DROP TRIGGER stall ON audit_log`

	holdStall = `SELECT pg_advisory_lock(4711)`
	freeStall = `SELECT pg_advisory_unlock(4711)`
	stalled   = `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	endStalled = `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711
		AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
)

// A node is killed while it commits a re-run. The transaction is there as a whole, with its row in the audit log, or
// not at all; what the next node then does follows from that.
func TestNodeIsKilledInAnOperatorsCommit(t *testing.T) {
	t.Parallel()
	binary := testenv.Program(t, root)
	for outcome, commits := range map[string]bool{"and it was committed": true, "and it was not": false} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			killedAtCommit(t, binary, commits)
		})
	}
}

func killedAtCommit(t *testing.T, binary string, commits bool) {
	t.Helper()
	poison := []int{1, 2, 3, 500, 501, 998, 999}
	const items = 1000
	o := newOffice(t, binary, faultyservice.Config{Concurrency: 2,
		Poison: &faultyservice.Poison{Ordinals: poison, Way: faultyservice.WayItem}})
	first := o.serve()
	run := o.begin(first, items)
	o.complete(run)
	free := o.stall()
	rerun := []string{"run", "rerun", run.String(), "--failed"}
	said := o.begun(first, rerun...)
	o.until("the node commits", func() bool { return o.number(stalled) == 1 })
	o.kill(first)
	if r := said(); r.code == 0 {
		t.Errorf("the command succeeded although its server died:\n%s", r.out)
	}
	want := 1
	if !commits {
		want = 0
		o.number(`WITH ended AS (` + endStalled + `) SELECT count(*) FROM ended`)
	}
	free()
	o.until("the transaction has ended", func() bool { return o.number(stalled) == 0 })
	const generation = `SELECT generation - 1 FROM batchrun WHERE id = $1`
	o.until("the re-run is there, or not", func() bool { return o.number(generation, run) == want })
	if n := o.number(`SELECT count(*) FROM audit_log WHERE run_id = $1 AND action = 'rerun'`, run); n != want {
		t.Errorf("%d rows of the audit log are about it; want %d", n, want)
	}
	next := o.serve()
	if !commits { // the operator tries again
		o.must(next, rerun...)
	}
	o.until("the second generation completes", func() bool { return o.number(generation, run) == 1 })
	o.complete(run)
	o.wantEnd(run, items, len(poison))
}

// wantEnd checks the outcomes of items, that each was executed once, and those that failed twice, and the invariants.
func (o *office) wantEnd(run workqueue.RunID, items, bad int) {
	o.Helper()
	if n := o.number(`SELECT failed FROM batchrun WHERE id = $1 AND done + failed = items`, run); n != bad {
		o.Errorf("%d failed; want %d", n, bad)
	}
	for generation, want := range map[int]int{1: items, 2: bad} {
		seen := o.ledger.Times(uuid.UUID(run), generation)
		if len(seen) != want {
			o.Errorf("%d items were executed in generation %d; want %d", len(seen), generation, want)
		}
		for ordinal, n := range seen {
			if n != 1 {
				o.Errorf("item %d was executed %d times in generation %d", ordinal, n, generation)
			}
		}
	}
	nodetest.WantInvariants(o.T, o.store)
}

// stall has the next operation wait in its commit, until the returned function is called.
func (o *office) stall() (free func()) {
	o.Helper()
	testenv.Must(o.pool.Exec(o.Context(), stallAction))(o)
	conn := testenv.Must(o.pool.Acquire(o.Context()))(o)
	testenv.Must(conn.Exec(o.Context(), holdStall))(o)
	freed := false
	free = func() {
		if freed {
			return
		}
		freed = true
		o.unstall(conn)
	}
	o.Cleanup(free)
	return free
}

func (o *office) unstall(conn *pgxpool.Conn) {
	o.Helper()
	if _, err := conn.Exec(context.Background(), freeStall); err != nil {
		o.Error(err)
	}
	conn.Release()
	if _, err := o.pool.Exec(context.Background(), unstallAction); err != nil {
		o.Error(err)
	}
}
