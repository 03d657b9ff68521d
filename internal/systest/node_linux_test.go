package systest

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/tools/faultyservice"
	"github.com/tranchehq/tranche/workqueue"
)

// A node is killed after a commit that no one was told of, and another comes after it. Package orchestrator crashes
// nodes everywhere else, without a process (TestANodeCrashesAnywhere): this shows that the two agree.
func TestNodeIsKilled(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.items = 10_000 // chunks for more than three transactions, however many each of them takes
	w.start("service")
	run := w.load()
	first := w.start("node", faultsVariable+"="+fault.RecordCommitted+"=kill@3")
	w.wantKilled(first)
	testenv.Has(t, first.said.String(), "fault fired: "+fault.RecordCommitted, "the fault")
	if w.done(run) == w.items {
		t.Fatal("the run was complete before the fault")
	}
	w.start("node")
	extra, again := w.wantSound(run), w.number(`SELECT count(*) FROM work_slice WHERE cause = 'session'`)
	if extra > again*chunk {
		t.Errorf("%d extra executions for %d slices that came again", extra, again)
	}
	testenv.Same(t, w.number(`SELECT count(*) FROM work_slice WHERE cause NOT IN ('ready', 'session')`), 0,
		"slices were made for another cause")
}

// A node sleeps for three lives of a session in the middle of its work. Others take over; when it wakes up, what it
// still writes touches nothing, and it says that it lost its session.
func TestNodeSleepsForThreeLeases(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.load()
	sleeper := w.start("node")
	w.until("the sleeper has work out", func() bool {
		return w.number(`SELECT count(*) FROM work_slice WHERE state IN ('claimed', 'sent')`) == 8
	})
	w.signal(sleeper, syscall.SIGSTOP)
	asleep := time.Now()
	w.start("node")
	w.start("service")
	w.until("others have done it all", func() bool { return w.done(run) == items })
	w.until("it has slept long enough", func() bool { return time.Since(asleep) > 3*sessionTTL })
	parts := w.number(`SELECT count(*) FROM work_result`)
	w.signal(sleeper, syscall.SIGCONT)
	w.until("the sleeper counts its loss", func() bool {
		return w.number(`SELECT count(*) FROM node_session WHERE (stats->>'sessions_lost')::int > 0`) > 0
	})
	testenv.Same(w, w.number(`SELECT count(*) FROM work_result`), parts, "parts, with those written by a zombie")
	w.wantSound(run)
	w.signal(sleeper, syscall.SIGTERM)
	w.await(sleeper)
	testenv.Same(w, sleeper.err, nil, "the sleeper ended with")
}

// A service dies in the middle of a chunk: JetStream hands its request to another, and only that chunk runs again.
func TestServiceIsKilledInMidChunk(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.load()
	w.start("node", sessionVariable+"=1m")
	dying := w.start("service", dieVariable+"=1050")
	w.until("the chunks before it are recorded", func() bool { return w.done(run) == 1000 })
	w.until("it stands in mid-chunk", func() bool { return strings.Contains(dying.said.String(), halfway) })
	w.signal(dying, syscall.SIGKILL)
	w.wantKilled(dying)
	w.start("service")
	extra := w.wantSound(run)
	again := map[string]int{}
	for e, n := range w.executions() {
		if n > 1 {
			again[e.slice.String()] += n - 1
		}
	}
	// The acknowledgement of the chunk before may have been on its way still.
	if extra < 50 || extra > 50+chunk || len(again) == 0 || len(again) > 2 {
		t.Errorf("%d executions too many, of slices %v; want the half chunk again", extra, again)
	}
	testenv.Same(t, w.number(`SELECT count(*) FROM work_slice WHERE cause <> 'ready'`), 0, "slices were reissued")
}

// leader returns the epoch of whoever leads; 0: no one.
func (w *world) leader() int {
	w.Helper()
	return w.number(`SELECT coalesce(max(epoch), 0) FROM leader WHERE expires_at > tranche_now()`)
}

// led waits until someone leads, and returns in which epoch: a lease may run out that was prolonged late.
func (w *world) led() (epoch int) {
	w.Helper()
	w.until("someone leads", func() bool { epoch = w.leader(); return epoch > 0 })
	return epoch
}

// takeover waits until an epoch later than one has begun, and returns how long that took, without what the machine
// was stalled meanwhile.
func (w *world) takeover(before int) time.Duration {
	w.Helper()
	watch := testenv.NewWatch(w)
	w.until("another node leads", func() bool { return w.leader() > before })
	return watch.Ran()
}

// leadingNodes are nodes of which one leads. They have the times that nodes have unless told otherwise: who leads does
// not change because a machine is busy for a moment.
type leadingNodes struct {
	*world
	leads *process
}

func (n *leadingNodes) more() *process {
	n.Helper()
	return n.start("node", leaseVariable+"="+orchestrator.DefaultLeaseTTL.String(),
		sessionVariable+"="+orchestrator.DefaultSessionTTL.String())
}

// wantFollowed ends the leader and wants another one soon. A machine that is busy for a moment has three tries.
func (n *leadingNodes) wantFollowed(by syscall.Signal, within time.Duration) {
	n.Helper()
	var took time.Duration
	for range 3 {
		last, next, before := n.leads, n.more(), n.led()
		n.signal(last, by)
		took, n.leads = n.takeover(before), next
		n.Logf("after %s: %s", by, took)
		if by == syscall.SIGTERM {
			n.await(last)
		}
		if took < within {
			return
		}
	}
	n.Errorf("someone leads %s after %s; want %s at most", took, by, within)
}

// Someone leads again within 5 s of a kill, within 1 s of a clean stop; and a leader that was stopped for longer than
// its lease does not lead when it wakes up.
func TestTheLeaderIsKilledToldToEndAndStopped(t *testing.T) {
	t.Parallel()
	w := &leadingNodes{world: setup(t)}
	w.leads = w.more()
	w.takeover(0)
	w.wantFollowed(syscall.SIGKILL, 5*time.Second)
	w.wantFollowed(syscall.SIGTERM, time.Second)
	// Whoever follows keeps the lease from then on, however slow the machine is.
	w.start("node", leaseVariable+"=1m", sessionVariable+"=1m")
	sleeper, before := w.leads, w.led()
	w.signal(sleeper, syscall.SIGSTOP)
	w.takeover(before)
	w.until("the sleeper's session is over", func() bool {
		return w.number(`SELECT count(*) FROM node_session WHERE id = '`+sleeper.session()+`'
			AND (ended_at IS NOT NULL OR expires_at < tranche_now())`) == 1
	})
	epoch := w.led()
	w.signal(sleeper, syscall.SIGCONT)
	w.until("the sleeper counts its loss", func() bool {
		return w.number(`SELECT count(*) FROM node_session WHERE (stats->>'sessions_lost')::int > 0`) > 0
	})
	testenv.Same(t, w.leader(), epoch, "the epoch: the sleeper led again")
	// Nodes say so with their heartbeat: the new leader's first may be yet to come, the sleeper's has come.
	w.until("just the new leader says that it leads", func() bool {
		return w.number(`SELECT count(*) FROM node_session WHERE stats ? 'leader_tasks' AND expires_at > tranche_now()
			AND ended_at IS NULL`) == 1
	})
}

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

// A node is killed while it commits a rerun. The transaction is there entirely, with its row in the audit log, or
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
	o.until("the transaction ended", func() bool { return o.number(stalled) == 0 })
	const generation = `SELECT generation - 1 FROM batchrun WHERE id = $1`
	o.until("the rerun is there, or not", func() bool { return o.number(generation, run) == want })
	testenv.Same(t, o.number(`SELECT count(*) FROM audit_log WHERE run_id = $1 AND action = 'rerun'`, run), want,
		"rows of the audit log are about it")
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
	testenv.Same(o, o.number(`SELECT failed FROM batchrun WHERE id = $1 AND done + failed = items`, run), bad, "failed")
	for generation, want := range map[int]int{1: items, 2: bad} {
		seen := o.ledger.Times(uuid.UUID(run), generation)
		testenv.Same(o, len(seen), want, "items were executed in generation %d", generation)
		for ordinal, n := range seen {
			testenv.Same(o, n, 1, "executions of item %d in generation %d", ordinal, generation)
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
	testenv.Must(conn.Exec(context.Background(), freeStall))(o)
	conn.Release()
	testenv.Must(o.pool.Exec(context.Background(), unstallAction))(o)
}
