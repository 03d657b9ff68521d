package workqueue_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
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
		l.run, l.err = startstore.New(b.store).Load(b.Context(), req, next)
	}()
	return l
}

// wait returns when the load has ended.
func (l *loading) wait() (startstore.Loaded, error) {
	<-l.done
	return l.run, l.err
}

// gated holds items back, from the i-th on, until the gate is open; then it goes on, or fails with an error.
func gated(next func(*startstore.LoadItem) error, i int, gate <-chan error) func(*startstore.LoadItem) error {
	return func(item *startstore.LoadItem) error {
		if i--; i == -1 {
			if err := <-gate; err != nil {
				return err
			}
		}
		return next(item)
	}
}

// holdRows runs a locking query in a transaction of its own, and returns what ends it.
func (b *bench) holdRows(sql string, args ...any) (release func()) {
	b.Helper()
	tx, err := b.pool.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	release = func() { _ = tx.Rollback(context.Background()) } // once is enough
	b.Cleanup(release)
	tag, err := tx.Exec(b.Context(), sql, args...)
	if err != nil || tag.RowsAffected() == 0 {
		b.Fatalf("hold: %s, %v", tag, err)
	}
	return release
}

// waiters counts the statements that wait for a lock.
func (b *bench) waiters() int {
	b.Helper()
	return b.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
		AND wait_event_type = 'Lock'`)
}

func (b *bench) rowsOf(name string) int {
	b.Helper()
	return b.number(`SELECT count(*) FROM work_queue q JOIN batchrun r ON r.id = q.run_id WHERE r.name = $1`, name)
}

// Two loading nodes fall asleep. While the leader clears the load of one, the other wakes up and seals its run: the
// leader, who had seen it as abandoned, leaves it alone.
func TestClearingLeavesALoadAloneThatWakesUpAndSeals(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.lead()
	const items = 20
	asleep, awake := make(chan error), make(chan error)
	start := func(name string, gate chan error) (workqueue.SessionID, *loading) {
		req := request()
		req.Name, req.Session = name, b.open()
		l := b.goLoad(req, gated(heavy(items), items, gate))
		b.until("two batches are written", func() bool { return b.rowsOf(name) >= 16 })
		return req.Session, l
	}
	first, stays := start("stays asleep", asleep)
	second, wakes := start("wakes up", awake)
	b.expire(first)
	b.expire(second)
	release := b.holdRows(`SELECT 1 FROM batchrun WHERE name = 'stays asleep' FOR UPDATE`)
	var cleared []workqueue.RunID
	var clearErr error
	clearing := make(chan struct{})
	go func() {
		defer close(clearing)
		cleared, clearErr = startstore.New(b.store).ClearAbandonedLoads(t.Context(), lease)
	}()
	b.until("the leader is at the first load", func() bool { return b.waiters() == 1 })
	close(awake)
	loaded, err := wakes.wait()
	if err != nil {
		t.Fatalf("the load that woke up: %v", err)
	}
	release()
	<-clearing
	if clearErr != nil || len(cleared) != 1 || cleared[0] == loaded.Run {
		t.Errorf("cleared %v, %v; want the other run than %s", cleared, clearErr, loaded.Run)
	}
	close(asleep)
	if _, err := stays.wait(); !errors.Is(err, workqueue.ErrSessionLost) {
		t.Errorf("the load that slept on: %v; want ErrSessionLost", err)
	}
	if n := b.number(`SELECT count(*) FROM batchrun`); n != 1 || b.rowsOf("wakes up") != items {
		t.Errorf("%d runs are left, and %d items of %d", n, b.rowsOf("wakes up"), items)
	}
	b.wantState(loaded.Run, "running", 1)
	if sealed, err := startstore.New(b.store).ClearLoad(t.Context(), loaded.Run); !sealed || err != nil {
		t.Errorf("clear the sealed run: sealed %v, %v", sealed, err)
	}
	b.check()
	b.finish(loaded.Run)
	b.wantState(loaded.Run, "completed", 1)
}

// A load that is being taken back still has its idempotency key. Who asks with the key is told to wait, and is never
// told of a run that will be gone.
func TestKeyOfALoadThatIsTakenBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := request()
	req.IdempotencyKey, req.Session = "k", b.session
	broken := errors.New("the upload broke")
	gate := make(chan error)
	failing := b.goLoad(req, gated(heavy(20), 19, gate))
	b.until("the first batch is written", func() bool {
		return b.number(`SELECT count(*) FROM work_queue WHERE ordinal = 5`) > 0
	})
	wantStateError := func(when string) {
		t.Helper()
		loaded, err := b.tryLoad(req, few(4))
		if _, ok := errors.AsType[*workqueue.StateError](err); !ok || loaded.Existing {
			t.Errorf("while the load %s: %+v, %v; want a StateError", when, loaded, err)
		}
	}
	wantStateError("is under way")
	release := b.holdRows(`SELECT 1 FROM work_queue WHERE ordinal = 5 FOR UPDATE`)
	gate <- broken
	b.until("the load is being taken back", func() bool {
		return b.number(`SELECT count(*) FROM batchrun WHERE state = 'cancelled'`) == 1 && b.waiters() == 1
	})
	wantStateError("is being taken back")
	release()
	if _, err := failing.wait(); !errors.Is(err, broken) {
		t.Errorf("the load ended with %v", err)
	}
	b.wantNothing()
	loaded, err := b.tryLoad(req, few(4))
	if err != nil || loaded.Existing {
		t.Errorf("afterwards: %+v, %v; want a new run", loaded, err)
	}
	b.check()
}

// onLookup calls f before the n-th look for an idempotency key.
type onLookup struct {
	n int
	f func()
}

func (o *onLookup) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "WHERE idempotency_key = $1") {
		if o.n--; o.n == 0 {
			o.f()
		}
	}
	return ctx
}

func (o *onLookup) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Another load with the key is faster, and then fails: there is no run to tell of.
func TestKeyOfALoadThatWasFasterAndFailed(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	trace := &onLookup{n: 2}
	config.ConnConfig.Tracer = trace
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b := &bench{T: t, pool: testenv.Connect(t, url), store: database.New(pool)}
	b.session = b.open()
	req := request()
	req.IdempotencyKey = "k"

	broken := errors.New("the upload broke")
	rival := &bench{T: t, pool: b.pool, store: database.New(b.pool), session: b.session}
	gate := make(chan error)
	var faster *loading
	trace.f = func() {
		gate <- broken
		if _, err := faster.wait(); !errors.Is(err, broken) {
			t.Errorf("the faster load ended with %v", err)
		}
	}
	source, begun := few(4), false
	loaded, err := b.tryLoad(req, func(item *startstore.LoadItem) error {
		if !begun { // between the look for the key and the insert
			begun = true
			fast := req
			fast.Session = b.session
			faster = rival.goLoad(fast, gated(heavy(20), 19, gate))
			b.until("the faster load has the key", func() bool { return b.number(`SELECT count(*) FROM batchrun`) == 1 })
		}
		return source(item)
	})
	if trace.n > 0 {
		t.Fatal("the key was not looked for again")
	}
	if err == nil || loaded.Existing {
		t.Errorf("%+v, %v; want an error", loaded, err)
	}
	b.wantNothing()
	if loaded, err := b.tryLoad(req, few(4)); err != nil || loaded.Existing {
		t.Errorf("afterwards: %+v, %v; want a new run", loaded, err)
	}
	b.check()
}
