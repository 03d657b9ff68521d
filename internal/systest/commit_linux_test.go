package systest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

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

// operation is an operator's command, and what there is to see of it in the database.
type operation struct {
	flags   []string // of the run
	prepare func(*office, workqueue.RunID)
	command []string   // before the run's id
	options []string   // after it
	action  string     // as audited
	applied string     // whether it took effect; $1 is the run
	finish  [][]string // commands that let the run end when it did
}

func operations() map[string]operation {
	return map[string]operation{
		"pause": {
			flags:   []string{"--chunk", "4", "--in-flight", "1"}, // some fifty seconds to the end, to pause it in
			prepare: func(o *office, run workqueue.RunID) { o.until("some is done", func() bool { return o.done(run) > 0 }) },
			command: []string{"run", "pause"}, action: "pause",
			applied: `SELECT count(*) FROM batchrun WHERE id = $1 AND hold = 'operator'`,
			finish:  [][]string{{"run", "set", "--chunk", "500"}, {"run", "resume"}},
		},
		"approve": {
			flags: []string{"--canary", "20"},
			prepare: func(o *office, run workqueue.RunID) {
				o.until("the sample is done", func() bool {
					return o.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND hold = 'canary'`, run) == 1
				})
			},
			command: []string{"run", "approve"}, action: "approve",
			applied: `SELECT count(*) FROM batchrun WHERE id = $1 AND canary_state = 'passed'`,
		},
		"rerun": {
			prepare: func(o *office, run workqueue.RunID) {
				o.until("the run is over", func() bool {
					return o.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed'`, run) == 1
				})
			},
			command: []string{"run", "rerun"}, options: []string{"--failed"}, action: "rerun",
			applied: `SELECT count(*) FROM batchrun WHERE id = $1 AND generation = 2`,
		},
		"reset": {
			prepare: func(o *office, run workqueue.RunID) {
				o.until("the run is over", func() bool {
					return o.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed'`, run) == 1
				})
			},
			command: []string{"run", "reset"}, options: []string{"--all"}, action: "reset",
			applied: `SELECT count(*) FROM batchrun WHERE id = $1 AND generation = 2`,
		},
	}
}

// A node is killed while it commits what an operator has asked for. The transaction is there as a whole, with its row
// in the audit log, or not at all; what the next node then does follows from that.
func killedAtCommit(t *testing.T, binary string) {
	t.Helper()
	for name, op := range operations() {
		for outcome, commits := range map[string]bool{"and it was committed": true, "and it was not": false} {
			t.Run("node is killed at "+name+", "+outcome, func(t *testing.T) {
				t.Parallel()
				op.killed(t, binary, commits)
			})
		}
	}
}

func (op *operation) killed(t *testing.T, binary string, commits bool) {
	t.Helper()
	const items, bad = 1000, 7
	cfg := slow()
	cfg.Poison = &faultyservice.Poison{Ordinals: []int{1, 2, 3, 500, 501, 998, 999}, Way: faultyservice.WayItem}
	o := newOffice(t, binary, cfg)
	first := o.serve()
	run := o.begin(first, items, op.flags...)
	op.prepare(o, run)
	free := o.stall()
	said := o.begun(first, append(append(op.command, run.String()), op.options...)...)
	o.until("the node commits", func() bool { return o.number(stalled) == 1 })
	o.kill(first)
	if r := said(); r.code == 0 {
		t.Errorf("the command succeeded although its server died:\n%s", r.out)
	}
	if !commits {
		o.number(`WITH ended AS (` + endStalled + `) SELECT count(*) FROM ended`)
	}
	free()
	o.until("the transaction is over", func() bool { return o.number(stalled) == 0 })
	next := o.serve()
	want := 0
	if commits {
		want = 1
	}
	o.until("what was asked for is there, or not", func() bool { return o.number(op.applied, run) == want })
	if n := o.number(`SELECT count(*) FROM audit_log WHERE run_id = $1 AND action = $2`, run, op.action); n != want {
		t.Errorf("%d rows of the audit log are about it; want %d", n, want)
	}
	if !commits { // the operator tries again
		o.must(next, append(append(op.command, run.String()), op.options...)...)
	}
	for _, finish := range op.finish {
		o.must(next, append(finish, run.String())...)
	}
	o.until("the last generation is over", func() bool {
		return o.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed'
			AND ($2 NOT IN ('rerun', 'reset') OR generation = 2)`, run, op.action) == 1
	})
	o.wantEnd(run, items-bad, bad, func(n int) bool { return n <= 3 })
}

// stall has the next operation wait in its commit, until the returned function is called.
func (o *office) stall() (free func()) {
	o.Helper()
	if _, err := o.pool.Exec(o.Context(), stallAction); err != nil {
		o.Fatal(err)
	}
	conn, err := o.pool.Acquire(o.Context())
	if err != nil {
		o.Fatal(err)
	}
	if _, err := conn.Exec(o.Context(), holdStall); err != nil {
		o.Fatal(err)
	}
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
