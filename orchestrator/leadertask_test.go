package orchestrator_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

// The store gives the lease to one session, and to another when it has expired, was abandoned, or outranks the first.
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
