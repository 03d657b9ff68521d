package orchestrator_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// hang serves an endpoint by taking requests and answering none until the end of the test.
func (b *bundle) hang(t *testing.T, endpoint string) {
	t.Helper()
	over := make(chan struct{})
	b.serve(t, endpoint, func(context.Context, *endpoints.Chunk[account, statement]) error {
		<-over
		return errors.New("the test is over")
	})
	t.Cleanup(func() { close(over) })
}

// handed waits until services have all requests of a run, and the leader knows.
func (b *bundle) handed(t *testing.T, run workqueue.RunID) {
	t.Helper()
	until(t, "services were handed the requests", func() bool {
		var all bool
		err := b.pool.QueryRow(t.Context(), `SELECT coalesce(bool_and(handed_at IS NOT NULL), false) FROM work_slice
			WHERE run_id = $1 AND state = 'sent'`, run).Scan(&all)
		return err == nil && all
	})
}

// late makes the deadlines of a run pass.
func (b *bundle) late(t *testing.T, run workqueue.RunID) {
	t.Helper()
	b.exec(t, `UPDATE work_slice SET deadline = clock_timestamp() WHERE run_id = $1 AND state = 'sent'`, run)
}

// Whatever a part of the sweep meets, time-outs go on for the whole system.
func TestAPartOfTheSweepThatFailsKeepsNoOtherFromItsTurn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.hang(t, "statement")
	run := b.start(t, patient(), 100)
	b.handed(t, run)
	b.exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$`)
	b.exec(t, `CREATE TRIGGER refuse BEFORE DELETE ON api_request FOR EACH STATEMENT EXECUTE FUNCTION refuse()`)
	b.late(t, run)
	until(t, "the request has timed out", func() bool { return b.node.Stats().Expired > 0 })
}

// A load of a node that is gone takes long to be taken back: gigabytes of payloads, or somebody holds its row.
func TestALoadThatTakesLongToClearKeepsNoSweep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.hang(t, "statement")
	run := b.start(t, patient(), 100)
	b.handed(t, run)
	b.exec(t, `CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$`)
	b.exec(t, `CREATE TRIGGER linger BEFORE DELETE ON work_queue FOR EACH STATEMENT EXECUTE FUNCTION linger()`)
	large := []byte(`"` + strings.Repeat("x", 1<<20) + `"`) // a few of these make a batch
	dead, err := session.New(b.store).StartSession(t.Context(), session.NodeInfo{Host: "dead", PID: 1, Version: "test"},
		time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	req := patient()
	req.Session = dead
	stopped, ended := make(chan struct{}), make(chan struct{})
	source, written := items(100), 0
	go func() {
		defer close(ended)
		_, _ = start.New(b.store).Load(context.WithoutCancel(t.Context()), req, func(item *start.LoadItem) error {
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
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1)`); err != nil {
		t.Fatal(err)
	}
	until(t, "items of it are written", func() bool {
		var n int
		err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM work_queue q JOIN batchrun r ON r.id = q.run_id
			WHERE r.state = 'loading'`).Scan(&n)
		return err == nil && n > 0
	})
	b.exec(t, `UPDATE node_session SET expires_at = clock_timestamp() WHERE id = $1`, dead)
	until(t, "the leader takes it back", func() bool {
		var n int
		err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'
			AND datname = current_database()`).Scan(&n)
		return err == nil && n > 0
	})
	b.late(t, run)
	until(t, "the request has timed out", func() bool { return b.node.Stats().Expired > 0 })
}

// JetStream is silent: what is known without it goes on.
func TestWhoIsLateIsKnownWithoutJetStream(t *testing.T) {
	t.Parallel()
	b := serversOnly(t, testenv.Pool(t), embedded.NATSConfig{})
	toNATS := testenv.NewProxy(t, strings.TrimPrefix(b.ns.URL(), "nats://"))
	cfg := testConfig(t)
	cfg.LeaseTTL = 2 * time.Second
	node := b.join(t, b.store, testenv.Dial(t, "nats://"+toNATS.Addr()), cfg)
	b.node = node.Node
	b.hang(t, "statement")
	run := b.start(t, patient(), 100)
	b.handed(t, run)
	waiting := b.start(t, small("other"), 100) // nobody has been handed these
	b.sent(t, waiting, 1)
	toNATS.Stall()
	b.late(t, run)
	until(t, "the request has timed out", func() bool { return b.node.Stats().Expired > 0 })
	toNATS.Heal()
}
