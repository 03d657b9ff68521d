package orchestrator_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/start"
)

// size and halfway are of the runs that something happens to.
const (
	size    = 6_000
	halfway = 2_000
)

// small is a request whose run takes some dozens of slices.
func small(endpoint string) start.LoadRequest {
	req := request(endpoint)
	req.Steps[0].Chunk = 100
	return req
}

// patient has the deadlines of tests in which a re-issue at the deadline would hide that nothing else re-issues.
func patient() start.LoadRequest {
	req := small("statement")
	req.Steps[0].Timeout = 10 * time.Minute
	return req
}

// sessionLife is longer than a busy machine keeps a heartbeat waiting: what a node had claimed is done again when its
// session expires.
const sessionLife = time.Minute

func testConfig(t *testing.T) orchestrator.Config {
	t.Helper()
	return orchestrator.Config{Log: zaptest.NewLogger(t), Version: "test", Grace: 5 * time.Second, SessionTTL: sessionLife,
		Streams: stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}}
}

// member is a node that a test may stop, with its own way to the database and to NATS.
type member struct {
	*orchestrator.Node
	leave func() // tells it to stop
	stop  func() error
}

// join runs another node.
func (b *bundle) join(t *testing.T, store *database.DB, nc *nats.Conn, cfg orchestrator.Config) *member {
	t.Helper()
	node, err := orchestrator.New(store, nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx) }()
	var stopped bool
	m := &member{Node: node, leave: cancel, stop: func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}}
	t.Cleanup(func() { _ = m.stop() })
	select {
	case <-node.Ready():
	case <-time.After(stuck):
		t.Fatal("the node did not get ready")
	}
	return m
}

// epoch returns the epoch of the streams.
func (b *bundle) epoch(t *testing.T) (epoch int64) {
	t.Helper()
	if err := b.pool.QueryRow(t.Context(), `SELECT epoch FROM stream_epoch`).Scan(&epoch); err != nil {
		t.Fatal(err)
	}
	return epoch
}

// until polls for a condition, with a deadline.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	deadline := time.After(stuck)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("waited in vain until " + what)
		}
	}
}

// Without faults every item is executed exactly once, by three nodes and two services.
func TestEveryItemIsExecutedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.startNode(t)
	b.startNode(t)
	l := newLedger(0)
	b.serve(t, "statement", l.handle)
	b.serve(t, "statement", l.handle)
	run := b.start(t, patient(), 20_000)
	b.wantSound(t, l, run, 20_000)
	l.wantOnce(t, run, 20_000)
}

func deleteStreams(names ...string) func(*testing.T, *bundle, jetstream.JetStream) {
	return func(t *testing.T, _ *bundle, js jetstream.JetStream) {
		t.Helper()
		for _, name := range names {
			if err := js.DeleteStream(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// recreate puts a stream of other settings in the place of one of ours.
func recreate(name, subject string) func(*testing.T, *bundle, jetstream.JetStream) {
	return func(t *testing.T, _ *bundle, js jetstream.JetStream) {
		t.Helper()
		until(t, "the stream is replaced", func() bool { // the node may be faster to create its own
			if err := js.DeleteStream(t.Context(), name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				t.Fatal(err)
			}
			_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject},
				Retention: jetstream.LimitsPolicy, Storage: jetstream.MemoryStorage})
			return err == nil
		})
	}
}

// What was in the streams is gone in the middle of a run: it completes, in seconds, although its deadlines are far.
func TestRunSurvivesTheLossOfStreams(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *bundle, jetstream.JetStream){
		"work stream deleted":            deleteStreams(wire.StreamWork),
		"reply stream deleted":           deleteStreams(wire.StreamReply),
		"stage stream deleted":           deleteStreams(wire.StreamStage),
		"flow stream deleted":            deleteStreams(wire.StreamFlow),
		"all streams deleted":            deleteStreams(wire.StreamWork, wire.StreamReply, wire.StreamEvent),
		"work stream of other settings":  recreate(wire.StreamWork, "tranche.work.*"),
		"reply stream of other settings": recreate(wire.StreamReply, "tranche.reply.*"),
		"store wiped": func(t *testing.T, b *bundle, _ jetstream.JetStream) {
			t.Helper()
			// The server may write into a directory between what empties and what removes it.
			until(t, "the store is gone", func() bool { return os.RemoveAll(b.dir) == nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			l := newLedger(halfway)
			b.serve(t, "statement", l.handle)
			run := b.start(t, patient(), size)
			l.await(t)
			before := b.epoch(t)
			js, err := jetstream.New(b.nc)
			if err != nil {
				t.Fatal(err)
			}
			lose(t, b, js)
			until(t, "a new epoch begins", func() bool { return b.epoch(t) > before })
			until(t, "what was sent is issued again", func() bool { return b.node.Stats().Released > 0 })
			close(l.gate)
			b.wantSound(t, l, run, size)
			if n := b.node.Stats().Expired; n != 0 {
				t.Errorf("%d slices had to wait for their deadline", n)
			}
			info, err := js.Stream(t.Context(), wire.StreamWork)
			if err != nil || info.CachedInfo().Config.Retention != jetstream.WorkQueuePolicy {
				t.Errorf("the work stream is %v, %v", info, err)
			}
		})
	}
}

func TestRunSurvivesARestartOfNATS(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := newLedger(halfway)
	b.serve(t, "statement", l.handle)
	run := b.start(t, patient(), size)
	l.await(t)
	if err := b.ns.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "clients are back", func() bool { return b.nc.Stats().Reconnects > 0 })
	close(l.gate)
	b.wantSound(t, l, run, size)
}

func TestRunSurvivesACrashOfPostgreSQL(t *testing.T) {
	t.Parallel()
	cluster := testenv.Postgres(t)
	b := setupOn(t, testenv.Connect(t, cluster.URL()))
	l := newLedger(halfway)
	b.serve(t, "statement", l.handle)
	run := b.start(t, patient(), size)
	l.await(t)
	started := `SELECT pg_postmaster_start_time()`
	var before, after time.Time
	if err := b.pool.QueryRow(t.Context(), started).Scan(&before); err != nil {
		t.Fatal(err)
	}
	cluster.Kill(t)
	close(l.gate) // replies arrive while there is no database
	cluster.Start(t)
	b.pool.Reset()
	until(t, "the pool is back", func() bool { return b.pool.QueryRow(t.Context(), started).Scan(&after) == nil })
	if !after.After(before) {
		t.Fatal("PostgreSQL was not restarted")
	}
	// What could be neither published nor given back meanwhile has been claimed for too long.
	b.exec(t, `UPDATE work_slice SET deadline = clock_timestamp() WHERE state = 'claimed' AND created_at < $1`, after)
	b.wantSound(t, l, run, size)
	if n := b.node.Stats().Expired; n != 0 {
		t.Errorf("%d slices had to wait for their deadline", n)
	}
}

// idle is how long PostgreSQL lets a transaction of a node that has gone silent keep its locks.
const idle = 2 * time.Second

// through returns a store whose connections go through a proxy.
func (b *bundle) through(t *testing.T) (*database.DB, *testenv.Proxy) {
	t.Helper()
	config := b.pool.Config().ConnConfig
	target, number := config.Host, strconv.Itoa(int(config.Port))
	if target[0] == '/' {
		target = filepath.Join(target, ".s.PGSQL."+number)
	} else {
		target = net.JoinHostPort(target, number)
	}
	proxy := testenv.NewProxy(t, target)
	at := url.URL{Scheme: "postgres", User: url.UserPassword(config.User, config.Password), Host: proxy.Addr(),
		Path: config.Database, RawQuery: "sslmode=disable"}
	store, release, err := database.Open(t.Context(), at.String(), database.PoolConfig{IdleInTransaction: idle})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return store, proxy
}

// Two nodes share a run. One of them is cut off from its database, from NATS or from both, for longer than a session
// lives, while it holds work; the other carries on, and when the network heals nothing is done twice over.
func TestRunSurvivesPartitions(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		database, streams func(*testenv.Proxy)
	}{
		"database cut":     {database: (*testenv.Proxy).Cut},
		"database stalled": {database: stall()},
		"database silent":  {database: stall(testenv.Down)},
		"NATS cut":         {streams: (*testenv.Proxy).Cut},
		"NATS stalled":     {streams: stall()},
		"everything cut":   {database: (*testenv.Proxy).Cut, streams: (*testenv.Proxy).Cut},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			store, toDatabase := b.through(t)
			at, err := url.Parse(b.ns.URL())
			if err != nil {
				t.Fatal(err)
			}
			toNATS := testenv.NewProxy(t, at.Host)
			cfg := testConfig(t)
			cfg.SessionTTL, cfg.Heartbeat, cfg.LeaseTTL = 1500*time.Millisecond, 300*time.Millisecond, time.Second
			cut := b.join(t, store, testenv.Dial(t, "nats://"+toNATS.Addr()), cfg)
			l := newLedger(halfway)
			b.serve(t, "statement", l.handle)
			req := patient()
			if tc.database == nil {
				// The session lives on: what the node cannot publish comes back by its deadline, and is not its items' fault.
				req.Steps[0].Timeout, req.Steps[0].MaxAttempts = 5*time.Second, 10
			}
			run := b.start(t, req, size)
			l.await(t)
			if toDatabase.Connections() == 0 || toNATS.Connections() == 0 {
				t.Fatal("the node does not go through the proxies")
			}
			if tc.database != nil {
				tc.database(toDatabase)
			}
			if tc.streams != nil {
				tc.streams(toNATS)
			}
			close(l.gate)
			if tc.database != nil {
				until(t, "the session is over", func() bool {
					var over bool
					err := b.pool.QueryRow(t.Context(), `SELECT expires_at <= clock_timestamp() FROM node_session WHERE id = $1`,
						cut.Session()).Scan(&over)
					return err == nil && over
				})
			}
			b.outcome(t, run, 1)
			toDatabase.Heal()
			toNATS.Heal()
			if tc.database != nil {
				until(t, "the node has a new session", func() bool { return cut.Stats().SessionsLost > 0 })
			}
			if err := cut.stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
			b.wantSound(t, l, run, size)
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
	leaving := b.join(t, b.store, testenv.Conn(t, b.ns), testConfig(t))
	l := newLedger(halfway)
	b.serve(t, "statement", l.handle)
	run := b.start(t, patient(), size)
	l.await(t)
	session := leaving.Session()
	if err := leaving.stop(); err != nil {
		t.Fatal(err)
	}
	var held int
	err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM work_slice s JOIN node_session n ON n.id = s.session_id
		WHERE s.session_id = $1 AND (s.state = 'claimed' OR n.ended_at IS NULL)`, session).Scan(&held)
	if err != nil || held != 0 {
		t.Errorf("the node left %d slices claimed, or its session open (%v)", held, err)
	}
	close(l.gate)
	b.wantSound(t, l, run, size)
	l.wantOnce(t, run, size)
	if n := b.node.Stats().Expired + b.node.Stats().Released; n != 0 {
		t.Errorf("%d slices were issued again", n)
	}
}
