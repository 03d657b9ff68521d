package orchestrator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Without faults every item is executed exactly once, with the run's parameters, by three nodes and two services.
func TestEveryItemIsExecutedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.StartNode(t)
	b.StartNode(t)
	l := nodetest.NewLedger(0)
	req := nodetest.Patient()
	req.Params = map[string]string{"year": "2026", "title": `<é "quoted">`}
	for range 2 {
		b.Serve(t, "statement", func(ctx context.Context, chunk *nodetest.Chunk) error {
			if !maps.Equal(chunk.Params(), req.Params) {
				t.Errorf("the parameters are %v", chunk.Params())
			}
			return l.Handle(ctx, chunk)
		})
	}
	run := b.Start(t, req, nodetest.Size)
	b.WantSound(t, l, run, nodetest.Size)
	l.WantOnce(t, run, nodetest.Size)
}

func TestRunSurvivesARestartOfNATS(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.SetupWith(t, embedded.NATSConfig{})}
	l := nodetest.NewLedger(nodetest.Halfway)
	b.Serve(t, "statement", l.Handle)
	run := b.Start(t, nodetest.Patient(), nodetest.Size)
	l.Await(t)
	back := b.NC.StatusChanged(nats.CONNECTED)
	testenv.NoError(t, b.Own.Restart(t.Context()))
	<-back
	close(l.Gate)
	b.WantSound(t, l, run, nodetest.Size)
	b.WantDrained(t) // what comes after the restart is acknowledged as before
}

func TestRunSurvivesACrashOfPostgreSQL(t *testing.T) {
	t.Parallel()
	cluster := testenv.Postgres(t)
	b := &bundle{nodetest.SetupOn(t, testenv.Connect(t, cluster.URL()))}
	l := nodetest.NewLedger(nodetest.Halfway)
	b.Serve(t, "statement", l.Handle)
	run := b.Start(t, nodetest.Patient(), nodetest.Size)
	l.Await(t)
	started := `SELECT pg_postmaster_start_time()`
	var before, after time.Time
	testenv.NoError(t, b.Pool.QueryRow(t.Context(), started).Scan(&before))
	cluster.Kill(t)
	close(l.Gate) // replies arrive while there is no database
	cluster.Start(t)
	b.Pool.Reset()
	nodetest.Until(t, "the pool is back", func() bool { return b.Pool.QueryRow(t.Context(), started).Scan(&after) == nil })
	if !after.After(before) {
		t.Fatal("PostgreSQL was not restarted")
	}
	// What could be neither published nor given back meanwhile has been claimed for too long.
	b.Exec(t, `UPDATE work_slice SET deadline = tranche_now() WHERE state = 'claimed' AND created_at < $1`, after)
	b.WantSound(t, l, run, nodetest.Size)
	testenv.Same(t, b.Node.Stats().Expired, 0, "slices had to wait for their deadline")
}

// A node whose first look at the streams takes more than QueryTimeout, about twelve questions, starts anyway, and a
// service listens whose consumer is found after more than half a second.
func TestRunIsDoneThoughJetStreamAnswersLate(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	late := func(trip time.Duration) *nats.Conn {
		nc, proxy := testenv.DialThrough(t, b.NS)
		proxy.Delay(trip / 2) // of the next connection
		testenv.NoError(t, nc.ForceReconnect())
		return nc
	}
	nodetest.ServeOn(t, late(600*time.Millisecond), "statement", nodetest.Echo)
	b.Node = b.Join(t, b.Store, late(200*time.Millisecond), nodetest.Config(t)).Node
	b.Want(t, b.Start(t, nodetest.Small("statement"), 10), 1, 10, 0)
}

// Two nodes share a run. One of them is cut off from its database, from NATS or from both, for longer than a session
// lives, while it holds work; the other continues, and when the network heals nothing is done twice.
func TestRunSurvivesPartitions(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		database, streams func(*testenv.Proxy)
	}{
		"database cut":    {database: (*testenv.Proxy).Cut},
		"database silent": {database: stall(testenv.Down)},
		"NATS stalled":    {streams: stall()},
		"everything cut":  {database: (*testenv.Proxy).Cut, streams: (*testenv.Proxy).Cut},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			store, toDatabase := b.Through(t, 2*time.Second)
			nc, toNATS := testenv.DialThrough(t, b.NS)
			cfg := nodetest.Config(t)
			cfg.SessionTTL, cfg.Heartbeat, cfg.LeaseTTL = 1500*time.Millisecond, 300*time.Millisecond, time.Second
			cut := b.Join(t, store, nc, cfg)
			l := nodetest.NewLedger(nodetest.Halfway)
			b.Serve(t, "statement", l.Handle)
			req := nodetest.Patient()
			if tc.database == nil {
				// The session lives on: what the node cannot publish comes back by its deadline, and is not its items' fault.
				req.Steps[0].Timeout, req.Steps[0].MaxAttempts = 5*time.Second, 10
			}
			run := b.Start(t, req, nodetest.Size)
			l.Await(t)
			if toDatabase.Connections() == 0 || toNATS.Connections() == 0 {
				t.Fatal("the node does not go through the proxies")
			}
			if tc.database != nil {
				tc.database(toDatabase)
			}
			if tc.streams != nil {
				tc.streams(toNATS)
			}
			close(l.Gate)
			session := cut.Session() // not the first one, perhaps, on a slow machine
			if tc.database != nil {
				nodetest.Until(t, "the session is over", func() bool {
					return b.Number(t, `SELECT count(*) FROM node_session WHERE id = $1 AND expires_at <= tranche_now()`, session) == 1
				})
			}
			b.Outcome(t, run, 1)
			toDatabase.Heal()
			toNATS.Heal()
			if tc.database != nil {
				nodetest.Until(t, "the node has a new session", func() bool { return cut.Session() != session })
			}
			testenv.Same(t, cut.Stop(), nil, "stop")
			b.WantSound(t, l, run, nodetest.Size)
		})
	}
}

func stall(ways ...testenv.Direction) func(*testenv.Proxy) {
	return func(p *testenv.Proxy) { p.Stall(ways...) }
}

// A node that stops in good order hands back what it holds: nothing waits for a deadline or for its session.
func TestStopHandsBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cfg := nodetest.Config(t)
	cfg.Grace = nodetest.Stuck // what is cut off is done twice
	leaving := b.Join(t, b.Store, testenv.Conn(t, b.NS), cfg)
	l := nodetest.NewLedger(nodetest.Halfway)
	b.Serve(t, "statement", l.Handle)
	run := b.Start(t, nodetest.Patient(), nodetest.Size)
	l.Await(t)
	session := leaving.Session()
	testenv.NoError(t, leaving.Stop())
	testenv.Same(t, b.Number(t, `SELECT count(*) FROM work_slice s JOIN node_session n ON n.id = s.session_id
		WHERE s.session_id = $1 AND (s.state = 'claimed' OR n.ended_at IS NULL)`, session), 0,
		"slices that the node left claimed, or in an open session")
	close(l.Gate)
	b.WantSound(t, l, run, nodetest.Size)
	l.WantOnce(t, run, nodetest.Size)
	testenv.Same(t, b.Node.Stats().Expired+b.Node.Stats().Released, 0, "slices were reissued")
}

// bare is a bundle without a node.
func bare(t *testing.T) *bundle {
	t.Helper()
	return &bundle{nodetest.ServersOnly(t)}
}

// A node whose connection was closed permanently would keep the lease and do nothing.
func TestANodeWhoseConnectionIsClosedEnds(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	nc := testenv.Conn(t, b.NS)
	node := testenv.Must(orchestrator.New(b.Store, nc, nodetest.Config(t)))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx) }()
	<-node.Ready()
	nc.Close()
	if err := <-ended; !errors.Is(err, orchestrator.ErrConnectionClosed) || ctx.Err() != nil {
		t.Errorf("it ended with %v; want ErrConnectionClosed", err)
	}
	testenv.Same(t, b.Number(t, `SELECT count(*) FROM node_session WHERE ended_at IS NULL`), 0, "sessions are open")
	again := testenv.Must(orchestrator.New(b.Store, nc, nodetest.Config(t)))(t)
	testenv.Is(t, again.Run(ctx), orchestrator.ErrConnectionClosed, "one on a closed connection ended with")
}

// PROOF: who may do what, 17. What PostgreSQL quotes in an error is in no log above the level debug.
func TestErrorsOfPostgreSQLAreNotLogged(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("record: %w", &pgconn.PgError{Severity: "ERROR", Code: "22P02",
		Message: `invalid input syntax for type uuid: "KEY"`})
	for level, quoted := range map[zapcore.Level]bool{zap.InfoLevel: false, zap.DebugLevel: true} {
		core, seen := observer.New(level)
		zap.New(core).WithOptions(orchestrator.Quiet()).With(zap.NamedError("before", err)).Warn("it failed", zap.Error(err))
		said := fmt.Sprint(seen.All()[0].ContextMap())
		testenv.Same(t, strings.Count(said, "KEY"), map[bool]int{true: 2}[quoted], "keys at %s in %s", level, said)
		testenv.Same(t, strings.Count(said, "22P02"), 2, "codes at %s in %s", level, said)
	}
}

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
