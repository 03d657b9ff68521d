package sweep_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// hang serves an endpoint by taking requests and answering none until the end of the test.
func (b *bundle) hang(t *testing.T, endpoint string) {
	t.Helper()
	over := make(chan struct{})
	b.Serve(t, endpoint, func(context.Context, *nodetest.Chunk) error {
		<-over
		return errors.New("the test is over")
	})
	t.Cleanup(func() { close(over) })
}

// handed waits until services have all requests of a run, and the leader knows.
func (b *bundle) handed(t *testing.T, run workqueue.RunID) {
	t.Helper()
	nodetest.Until(t, "services were handed the requests", func() bool {
		b.Node.WakeDuty("sweep")
		var all bool
		err := b.Pool.QueryRow(t.Context(), `SELECT coalesce(bool_and(handed_at IS NOT NULL), false) FROM work_slice
			WHERE run_id = $1 AND state = 'sent'`, run).Scan(&all)
		return err == nil && all
	})
}

// late makes the deadlines of a run pass.
func (b *bundle) late(t *testing.T, run workqueue.RunID) {
	t.Helper()
	b.Exec(t, `UPDATE work_slice SET deadline = tranche_now() WHERE run_id = $1 AND state = 'sent'`, run)
}

// Whatever a part of the sweep meets, time-outs go on for the whole system.
func TestAPartOfTheSweepThatFailsKeepsNoOtherFromItsTurn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.hang(t, "statement")
	run := b.Start(t, nodetest.Patient(), 100)
	b.handed(t, run)
	b.Exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$`)
	b.Exec(t, `CREATE TRIGGER refuse BEFORE DELETE ON api_request FOR EACH STATEMENT EXECUTE FUNCTION refuse()`)
	b.late(t, run)
	nodetest.Until(t, "the request has timed out", func() bool { return b.Node.Stats().Expired > 0 })
}

// A load of a node that is gone takes long to be taken back: gigabytes of payloads, or somebody holds its row.
func TestALoadThatTakesLongToClearKeepsNoSweep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.hang(t, "statement")
	run := b.Start(t, nodetest.Patient(), 100)
	b.handed(t, run)
	b.Exec(t, `CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$`)
	b.Exec(t, `CREATE TRIGGER linger BEFORE DELETE ON work_queue FOR EACH STATEMENT EXECUTE FUNCTION linger()`)
	large := []byte(`"` + strings.Repeat("x", 1<<20) + `"`) // a few of these make a batch
	dead, err := session.New(b.Store).StartSession(t.Context(), session.NodeInfo{Host: "dead", PID: 1, Version: "test"},
		time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	req := nodetest.Patient()
	req.Session = dead
	stopped, ended := make(chan struct{}), make(chan struct{})
	source, written := nodetest.Items(100), 0
	go func() {
		defer close(ended)
		_, _ = start.New(b.Store).Load(context.WithoutCancel(t.Context()), req, func(item *start.LoadItem) error {
			if written++; written == 20 {
				<-stopped
				return errors.New("its node is gone")
			}
			err := source(item)
			item.Payload = large
			return err
		})
	}()
	t.Cleanup(func() { close(stopped); <-ended })
	tx, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1)`); err != nil {
		t.Fatal(err)
	}
	nodetest.Until(t, "items of it are written", func() bool {
		var n int
		err := b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM work_queue q JOIN batchrun r ON r.id = q.run_id
			WHERE r.state = 'loading'`).Scan(&n)
		return err == nil && n > 0
	})
	b.Exec(t, `UPDATE node_session SET expires_at = tranche_now() WHERE id = $1`, dead)
	nodetest.Until(t, "the leader takes it back", func() bool {
		var n int
		err := b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'
			AND datname = current_database()`).Scan(&n)
		return err == nil && n > 0
	})
	b.late(t, run)
	nodetest.Until(t, "the request has timed out", func() bool { return b.Node.Stats().Expired > 0 })
}

// JetStream is silent: what is known without it goes on.
func TestWhoIsLateIsKnownWithoutJetStream(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t, testenv.Pool(t), embedded.NATSConfig{})}
	toNATS := testenv.NewProxy(t, strings.TrimPrefix(b.NS.URL(), "nats://"))
	cfg := nodetest.Config(t)
	cfg.LeaseTTL = 2 * time.Second
	node := b.Join(t, b.Store, testenv.Dial(t, "nats://"+toNATS.Addr()), cfg)
	b.Node = node.Node
	b.hang(t, "statement")
	run := b.Start(t, nodetest.Patient(), 100)
	b.handed(t, run)
	waiting := b.Start(t, nodetest.Small("other"), 100) // nobody has been handed these
	b.Sent(t, waiting, 1)
	toNATS.Stall()
	b.late(t, run)
	nodetest.Until(t, "the request has timed out", func() bool { return b.Node.Stats().Expired > 0 })
	toNATS.Heal()
}
