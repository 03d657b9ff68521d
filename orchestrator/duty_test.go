package orchestrator_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/retention"
	"github.com/tranchehq/tranche/workqueue/session"
)

// completed waits until a run has completed, and has told so.
func (b *bundle) completed(t *testing.T, run workqueue.RunID) {
	t.Helper()
	b.Await(t, "the run has completed and told so", `SELECT count(*) = 1 FROM run_event WHERE run_id = '`+run.String()+
		`' AND kind = 'completed' AND published_at IS NOT NULL`)
}

// The store gives the lease to one session, and to another when it has expired, was given up, or outranks the first.
func TestTheStoreKeepsTheLease(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	testenv.StopClock(t, pool, time.Now())
	store := session.New(database.New(pool))
	var nodes [2]workqueue.SessionID
	for i := range nodes {
		var err error
		nodes[i], err = store.StartSession(t.Context(), session.NodeInfo{Host: "h", PID: 1}, time.Hour)
		testenv.NoError(t, err)
	}
	lead := func(i int, epoch int64, want session.HeldError) {
		t.Helper()
		lease, err := store.Lead(t.Context(), nodes[i], time.Minute)
		held, isHeld := errors.AsType[*session.HeldError](err)
		if isHeld != (want != session.HeldError{}) || isHeld && *held != want ||
			!isHeld && (err != nil || lease.Epoch != epoch) {
			t.Errorf("%d leads: %+v, %v; want epoch %d, %+v", i, lease, err, epoch, want)
		}
	}
	no := session.HeldError{}
	lead(0, 1, no)
	lead(1, 0, session.HeldError{Left: time.Minute})
	testenv.Advance(t, pool, 40*time.Second)
	lead(0, 1, no) // prolonged
	testenv.Advance(t, pool, 59*time.Second)
	lead(1, 0, session.HeldError{Left: time.Second})
	testenv.Advance(t, pool, time.Second)
	lead(1, 2, no)
	testenv.NoError(t, store.Resign(t.Context(), workqueue.Lease{Session: nodes[1], Epoch: 2}))
	lead(0, 3, no)
	testenv.NoError(t, store.SetPrecedence(t.Context(), nodes[1], 1))
	lead(0, 0, session.HeldError{Left: time.Minute, Outranked: true})
}

// Finished runs past their limits are deleted by the leader, when someone asks at once.
func TestTheLeaderDeletesWhatIsPastItsLimits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Serve(t, "echo", nodetest.Echo)
	run := b.Start(t, nodetest.Request("echo"), 2500)
	b.completed(t, run)
	b.Exec(t, `UPDATE batchrun SET finished_at = finished_at - interval '1 hour'`)
	one := int64(1)
	limits := retention.Limits{Bytes: &[]int64{1 << 20}[0], Count: &one}
	testenv.Must(retention.New(b.Store).SetRetention(t.Context(), retention.RetainRuns, limits, "ann"))(t)
	kept := b.Start(t, nodetest.Request("echo"), 1)
	b.completed(t, kept)
	nodetest.Until(t, "only what there is of the newest is left", func() bool {
		b.Node.WakeLeaderTask(orchestrator.TaskRetention)
		return b.Number(t, `SELECT (SELECT count(*) FROM batchrun) + (SELECT count(*) FROM work_result)
			+ (SELECT count(*) FROM work_queue) + (SELECT count(*) FROM deleted_run WHERE purged_at IS NULL)`) == 3
	})
	_, err := inspect.New(b.Store).Resolve(t.Context(), run.String())
	testenv.Is(t, err, workqueue.ErrNotFound, "the run")
	b.Check(t)
}
