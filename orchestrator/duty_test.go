package orchestrator_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/retention"
	"github.com/tranchehq/tranche/workqueue/session"
)

// leaders is a database and a server for several nodes that compete.
type leaders struct {
	*testing.T
	bundle
}

func setupLeaders(t *testing.T) *leaders {
	t.Helper()
	pool := testenv.Pool(t)
	dir := t.TempDir() + "/nats"
	ns := testenv.NATSWith(t, embedded.NATSConfig{StoreDir: dir})
	return &leaders{T: t, bundle: bundle{&nodetest.Bundle{Pool: pool, Store: database.New(pool), NS: ns, Dir: dir,
		NC: testenv.Conn(t, ns)}}}
}

// start starts a node that can be stopped before the end of the test.
func (l *leaders) start(duties ...orchestrator.Duty) (node *orchestrator.Node, stop func()) {
	l.Helper()
	return l.startLooking(0, duties...)
}

// patience is a lease of which nobody sees the end: who takes it over, or comes early for that of another, was told to.
const patience = time.Hour

// startLooking is start of a node whose lease lives for ttl, and which looks at it by itself each quarter of that.
func (l *leaders) startLooking(ttl time.Duration, duties ...orchestrator.Duty) (node *orchestrator.Node, stop func()) {
	l.Helper()
	return l.startWith(orchestrator.Config{Duties: duties, LeaseTTL: ttl, SessionTTL: max(24*ttl, nodetest.SessionLife)})
}

func (l *leaders) startWith(config orchestrator.Config) (node *orchestrator.Node, stop func()) {
	l.Helper()
	config.Log, config.Version, config.Grace = zaptest.NewLogger(l.T), "test", nodetest.Grace
	config.SessionTTL = cmp.Or(config.SessionTTL, nodetest.SessionLife)
	config.Streams = stream.Config{WorkMaxBytes: 8 << 20, ReplyMaxBytes: 8 << 20, EventMaxBytes: 8 << 20}
	nc := testenv.Conn(l.T, l.NS)
	node, err := orchestrator.New(l.Store, nc, config)
	if err != nil {
		l.Fatal(err)
	}
	stop = testenv.Keep(l, l.Errorf, "the node", node.Run)
	select {
	case <-node.Ready():
	case <-time.After(nodetest.Stuck):
		l.Fatal("the node did not get ready")
	}
	if err := nc.FlushTimeout(nodetest.Stuck); err != nil { // it hears from now on when a leader resigns
		l.Fatal(err)
	}
	return node, stop
}

// leader returns who leads, by the database.
func (l *leaders) leader() (session workqueue.SessionID, epoch int64) {
	l.Helper()
	err := l.Pool.QueryRow(l.Context(), `SELECT session_id, epoch FROM leader WHERE expires_at > tranche_now()`).
		Scan(&session, &epoch)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		l.Fatal(err)
	}
	return session, epoch
}

// prolonged advances the clock, and waits until the node that leads has prolonged its lease, which it is told to.
func (l *leaders) prolonged(by time.Duration) {
	l.Helper()
	testenv.Advance(l, l.Pool, by)
	l.until("the lease is prolonged", func() bool {
		if err := l.NC.Publish(core.WakeSubject, []byte("lead")); err != nil {
			l.Fatal(err)
		}
		return l.Number(l.T, `SELECT count(*) FROM leader WHERE expires_at > tranche_now() + $1::interval`, patience-by) == 1
	})
}

func (l *leaders) until(what string, met func() bool) { l.Helper(); nodetest.Until(l.T, what, met) }

func (l *leaders) completed(run workqueue.RunID) {
	l.Helper()
	l.until("the run has completed and told so", func() bool {
		var n int
		err := l.Pool.QueryRow(l.Context(), `SELECT count(*) FROM run_event WHERE run_id = $1 AND kind = 'completed'
			AND published_at IS NOT NULL`, run).Scan(&n)
		return err == nil && n == 1
	})
}

// noting is a duty that says under which lease it ran, through a channel with room.
func noting(name string, ran chan<- workqueue.Lease) orchestrator.Duty {
	return orchestrator.Duty{Name: name, Run: func(_ context.Context, lease workqueue.Lease) (time.Duration, error) {
		select {
		case ran <- lease:
		default:
		}
		return time.Hour, nil
	}}
}

// A node leaves it to those that have precedence to lead, and leads where there is none: so a program that has a node
// in it does not keep schedules from being looked after. One that stops keeps no others from leading, however long what
// it has under way takes to end.
func TestNodesLeaveLeadingToThoseThatHavePrecedence(t *testing.T) {
	t.Parallel()
	l := setupLeaders(t)
	leads := func(node *orchestrator.Node) func() bool {
		return func() bool { session, _ := l.leader(); return session == node.Session() }
	}
	lesser, _ := l.start()
	l.until("the only node leads", leads(lesser))

	began, end := make(chan struct{}, 1), make(chan struct{})
	first, stopFirst := l.startWith(orchestrator.Config{Precedence: 1, Duties: []orchestrator.Duty{{Name: "long",
		Run: func(context.Context, workqueue.Lease) (time.Duration, error) {
			select {
			case began <- struct{}{}:
			default: // it has begun before
			}
			<-end
			return time.Hour, nil
		}}}})
	goOn := sync.OnceFunc(func() { close(end) })
	t.Cleanup(goOn)
	select {
	case <-began:
	case <-time.After(nodetest.Stuck):
		t.Fatal("the node with precedence did not lead")
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); stopFirst() }()
	l.until("the other one leads again", leads(lesser))
	var alive bool
	err := l.Pool.QueryRow(t.Context(), `SELECT ended_at IS NULL AND expires_at > tranche_now() FROM node_session
		WHERE id = $1`, first.Session()).Scan(&alive)
	if err != nil || !alive {
		t.Errorf("the first one is gone already (%v): the test shows nothing", err)
	}
	goOn()
	<-stopped

	second, _ := l.startWith(orchestrator.Config{Precedence: 1})
	l.until("the next one with precedence leads", leads(second))
	if _, before := l.leader(); before < 4 {
		t.Errorf("epoch %d; want 4 at the least", before)
	}
}

// A leader that stops hands over at once: the others are told, and look at a lease that has lost nothing of its time.
func TestACleanStopHandsOverAtOnce(t *testing.T) {
	t.Parallel()
	l := setupLeaders(t)
	ran := make(chan workqueue.Lease, 9)
	_, stop := l.startLooking(patience, noting("note", ran))
	first := <-ran
	others := make(chan workqueue.Lease, 9)
	l.startLooking(patience, noting("note", others))
	l.startLooking(patience, noting("note", others))
	began := time.Now()
	stop()
	next := <-others
	t.Logf("handed over in %s", time.Since(began))
	if next.Epoch != first.Epoch+1 {
		t.Errorf("epoch %d after %d; want the next one", next.Epoch, first.Epoch)
	}
	if session, epoch := l.leader(); session != next.Session || epoch != next.Epoch {
		t.Errorf("%s leads in epoch %d", session, epoch)
	}
}

// A leader that is gone without a word is followed as soon as its lease has run out.
func TestALeaderThatIsGoneIsFollowed(t *testing.T) {
	t.Parallel()
	l := setupLeaders(t)
	const ttl = 200 * time.Millisecond // after which the node looks again
	testenv.StopClock(t, l.Pool, time.Now())
	gone, err := session.New(l.Store).Lead(t.Context(), workqueue.NewSessionID(), ttl)
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan workqueue.Lease, 9)
	l.startLooking(patience, noting("note", ran)) // by itself it would look a quarter of an hour later
	if len(ran) > 0 {
		t.Error("a node leads before the lease of the other is over")
	}
	testenv.Advance(t, l.Pool, ttl)
	if next := <-ran; next.Epoch != gone.Epoch+1 {
		t.Errorf("epoch %d; want %d", next.Epoch, gone.Epoch+1)
	}
}

// A duty that takes longer than a lease lives keeps neither the lease nor the others; one that panics does the others
// no harm; and both are seen beside the node.
func TestDutiesDoNotHinderEachOther(t *testing.T) {
	t.Parallel()
	l := setupLeaders(t)
	var slow, most atomic.Int32
	quick := make(chan workqueue.Lease, 99)
	release := make(chan struct{})
	node, _ := l.startLooking(patience,
		orchestrator.Duty{Name: "slow", Run: func(ctx context.Context, _ workqueue.Lease) (time.Duration, error) {
			most.Store(max(most.Load(), slow.Add(1)))
			defer slow.Add(-1)
			select {
			case <-release:
			case <-ctx.Done():
			}
			return 0, nil
		}},
		orchestrator.Duty{Name: "panics", Run: func(context.Context, workqueue.Lease) (time.Duration, error) {
			panic("a mistake\x00")
		}},
		noting("quick", quick),
	)
	first := <-quick
	for range 3 { // a duty is done when it is wanted, however long it rests
		node.WakeDuty("quick")
		node.WakeDuty("slow")
		if lease := <-quick; lease != first {
			t.Fatalf("the lease was %v and is %v", first, lease)
		}
	}
	for range 3 { // longer than the lease lives
		l.prolonged(patience / 2)
	}
	views := map[string]inspect.DutyView{}
	l.until("the heartbeat tells of them", func() bool {
		node.WakeDuty("panics")
		nodes, err := inspect.New(l.Store).Nodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range nodes.Duties {
			views[d.Name] = d
		}
		return views["slow"].Running > 0 && views["panics"].Failures > 2
	})
	if _, epoch := l.leader(); epoch != first.Epoch {
		t.Errorf("the lease was lost: epoch %d after %d", epoch, first.Epoch)
	}
	if d := views["panics"]; !d.Failing || !strings.Contains(d.LastError, "a mistake") || d.FailedAt == nil {
		t.Errorf("%+v", d)
	}
	if d := views["quick"]; d.Runs != 4 || d.Failing || d.EndedAt == nil {
		t.Errorf("%+v", d)
	}
	for _, own := range []string{"sweep", "reconcile", "pace", "retention"} {
		if views[own].Runs == 0 {
			t.Errorf("duty %s has not run", own)
		}
	}
	close(release)
	l.until("the slow one runs again", func() bool { return most.Load() == 1 && slow.Load() <= 1 })
}

// A leader that was stopped in the middle of a duty, and wakes up when another leads, commits nothing; the duty is told
// that it is over, and does not run here any more.
func TestAPausedLeaderDoesNothing(t *testing.T) {
	t.Parallel()
	l := setupLeaders(t)
	if _, err := l.Pool.Exec(t.Context(), `CREATE TABLE written (epoch bigint)`); err != nil {
		t.Fatal(err)
	}
	inside, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	once := sync.Once{}
	var runs atomic.Int32
	var over atomic.Bool
	// The lease does not run out before somebody else has it, and the node looks at it after 5 s.
	l.startLooking(20*time.Second, orchestrator.Duty{Name: "write", Run: func(ctx context.Context, lease workqueue.Lease,
	) (time.Duration, error) {
		runs.Add(1)
		context.AfterFunc(ctx, func() { over.Store(true) })
		// A context of its own: a process that is stopped hears of nothing.
		err := session.New(l.Store).AsLeader(context.WithoutCancel(ctx), lease, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO written VALUES ($1)`, lease.Epoch)
			once.Do(func() { close(inside) })
			<-goOn
			return err
		})
		ended <- err
		return time.Hour, err
	}})
	<-inside
	proceed := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(proceed)
	heir := workqueue.NewSessionID() // its lease is over, and somebody else has it
	_, err := l.Pool.Exec(t.Context(), `UPDATE leader SET epoch = epoch + 1, session_id = $1,
		expires_at = tranche_now() + interval '1 hour'`, heir)
	if err != nil {
		t.Fatal(err)
	}
	l.until("the duty is told that it is over", over.Load)
	proceed()
	if err := <-ended; !errors.Is(err, workqueue.ErrNotLeader) {
		t.Errorf("the zombie's work: %v; want ErrNotLeader", err)
	}
	var written int
	if err := l.Pool.QueryRow(t.Context(), `SELECT count(*) FROM written`).Scan(&written); err != nil || written != 0 {
		t.Errorf("%d rows were written by a zombie, %v", written, err)
	}
	if session, epoch := l.leader(); session != heir || epoch != 2 || runs.Load() != 1 {
		t.Errorf("%s leads in epoch %d, and the duty ran %d times", session, epoch, runs.Load())
	}
}

// Finished runs past their limits are deleted by the leader, when somebody asks at once.
func TestTheLeaderDeletesWhatIsPastItsLimits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Serve(t, "echo", nodetest.Echo)
	run := b.Start(t, nodetest.Request("echo"), 2500)
	l := &leaders{T: t, bundle: *b}
	l.completed(run)
	_, err := b.Pool.Exec(t.Context(), `UPDATE batchrun SET finished_at = finished_at - interval '1 hour'`)
	if err != nil {
		t.Fatal(err)
	}
	one := int64(1)
	limits := retention.Limits{Bytes: &[]int64{1 << 20}[0], Count: &one}
	if _, err := retention.New(b.Store).SetRetention(t.Context(), retention.RetainRuns, limits, "ann"); err != nil {
		t.Fatal(err)
	}
	kept := b.Start(t, nodetest.Request("echo"), 1)
	l.completed(kept)
	gone := func() bool {
		b.Node.WakeDuty(orchestrator.DutyRetention)
		var left int
		err := b.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM batchrun) + (SELECT count(*) FROM work_part)
			+ (SELECT count(*) FROM work_queue) + (SELECT count(*) FROM retention_run WHERE gone_at IS NULL)`).Scan(&left)
		if err != nil {
			t.Fatal(err)
		}
		return left == 3 // what there is of the newest
	}
	l.until("the run is gone", gone)
	if _, err := inspect.New(b.Store).Resolve(t.Context(), run.String()); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("the run: %v", err)
	}
	report, err := doctor.New(b.Store).Doctor(t.Context())
	if err != nil || !report.OK() {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestDutiesAreChecked(t *testing.T) {
	t.Parallel()
	l := setupLeaders(t)
	noop := func(context.Context, workqueue.Lease) (time.Duration, error) { return 0, nil }
	for _, duties := range [][]orchestrator.Duty{
		{{Name: "", Run: noop}}, {{Name: "a"}}, {{Name: "a", Run: noop}, {Name: "a", Run: noop}},
		{{Name: "sweep", Run: noop}},
	} {
		_, err := orchestrator.New(l.Store, l.NC, orchestrator.Config{Duties: duties})
		if err == nil || !strings.Contains(err.Error(), "Config.Duties") {
			t.Errorf("%+v: %v", duties, err)
		}
	}
}
