package workqueue_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
	startstore "github.com/tranchehq/tranche/workqueue/start"
)

// loading is a load on a goroutine of its own.
type loading struct {
	run  startstore.Loaded
	err  error
	done chan struct{}
}

func (b *bench) goLoad(req startstore.LoadRequest, next func(*startstore.LoadItem) error) *loading {
	l := &loading{done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.run, l.err = startstore.New(b.Store).Load(b.Context(), req, next)
	}()
	return l
}

func (l *loading) wait() (startstore.Loaded, error) {
	<-l.done
	return l.run, l.err
}

// gated holds items back, from the i-th on, until the gate is open; then it continues, or fails with an error. It tells
// the gate that it has come there: all batches are written by then, except two that may be on their way.
func gated(next func(*startstore.LoadItem) error, i int, gate chan error) func(*startstore.LoadItem) error {
	return func(item *startstore.LoadItem) error {
		if i--; i == -1 {
			gate <- nil
			if err := <-gate; err != nil {
				return err
			}
		}
		return next(item)
	}
}

func (b *bench) rowsOf(name string) int {
	b.Helper()
	return b.Number(`SELECT count(*) FROM work_queue q JOIN batchrun r ON r.id = q.run_id WHERE r.name = $1`, name)
}

// Two loading nodes fall asleep. While the leader clears the load of one, the other wakes up and seals its run: the
// leader, who had seen it as abandoned, leaves it alone.
func TestClearingLeavesALoadAloneThatWakesUpAndSeals(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	const items = 20
	asleep, awake := make(chan error), make(chan error)
	start := func(name string, gate chan error) (workqueue.SessionID, *loading) {
		req := storetest.Request()
		req.Name, req.Session = name, b.Open()
		l := b.goLoad(req, gated(heavy(items), items, gate))
		testenv.NoError(b, <-gate)
		b.Until("all is written", func() bool { return b.rowsOf(name) == items })
		return req.Session, l
	}
	first, stays := start("stays asleep", asleep)
	second, wakes := start("wakes up", awake)
	if cleared, err := startstore.New(b.Store).ClearAbandonedLoads(t.Context(), lease); err != nil || len(cleared) > 0 {
		t.Errorf("cleared %v, %v although their nodes live", cleared, err)
	}
	b.Expire(first)
	b.Expire(second)
	_, err := session.New(b.Store).Heartbeat(t.Context(), first, time.Hour, nil)
	testenv.Is(t, err, workqueue.ErrSessionLost, "the heartbeat of a session that is over")
	release := b.HoldRows(`SELECT 1 FROM batchrun WHERE name = 'stays asleep' FOR UPDATE`)
	var cleared []workqueue.RunID
	var clearErr error
	clearing := make(chan struct{})
	go func() {
		defer close(clearing)
		cleared, clearErr = startstore.New(b.Store).ClearAbandonedLoads(t.Context(), lease)
	}()
	b.Until("the leader is at the first load", func() bool { return b.Waiters() == 1 })
	close(awake)
	loaded, err := wakes.wait()
	testenv.MustSame(t, err, nil, "the load that woke up")
	release()
	<-clearing
	if clearErr != nil || len(cleared) != 1 || cleared[0] == loaded.Run {
		t.Errorf("cleared %v, %v; want the other run than %s", cleared, clearErr, loaded.Run)
	}
	close(asleep)
	_, err = stays.wait()
	testenv.Is(t, err, workqueue.ErrSessionLost, "the load that slept on")
	if n := b.Number(`SELECT count(*) FROM batchrun`); n != 1 || b.rowsOf("wakes up") != items {
		t.Errorf("%d runs are left, and %d items of %d", n, b.rowsOf("wakes up"), items)
	}
	b.WantState(loaded.Run, "running", 1)
	if sealed, err := startstore.New(b.Store).ClearLoad(t.Context(), loaded.Run); !sealed || err != nil {
		t.Errorf("clear the sealed run: sealed %v, %v", sealed, err)
	}
	b.Check()
	b.Finish(loaded.Run)
	b.WantState(loaded.Run, "completed", 1)
}

// A load that is being undone still has its idempotency key. Who asks with the key is told to wait, and is never
// told of a run that will be gone.
func TestKeyOfALoadThatIsTakenBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Request()
	req.IdempotencyKey, req.Session = "k", b.Session
	broken := errors.New("the upload broke")
	gate := make(chan error)
	failing := b.goLoad(req, gated(heavy(20), 19, gate))
	testenv.NoError(b, <-gate)
	wantStateError := func(when string) {
		t.Helper()
		loaded, err := b.TryLoad(req, few(4))
		if _, ok := errors.AsType[*workqueue.StateError](err); !ok || loaded.Existing {
			t.Errorf("while the load %s: %+v, %v; want a StateError", when, loaded, err)
		}
	}
	wantStateError("is in progress")
	release := b.HoldRows(`SELECT 1 FROM work_queue LIMIT 1 FOR UPDATE`)
	gate <- broken
	b.Until("the load is being undone", func() bool {
		return b.Number(`SELECT count(*) FROM batchrun WHERE state = 'cancelled'`) == 1 && b.Waiters() == 1
	})
	wantStateError("is being undone")
	release()
	_, err := failing.wait()
	testenv.Is(t, err, broken, "the load ended with")
	b.WantNothing()
	loaded, err := b.TryLoad(req, few(4))
	if err != nil || loaded.Existing {
		t.Errorf("afterwards: %+v, %v; want a new run", loaded, err)
	}
	b.Check()
}
