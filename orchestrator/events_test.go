package orchestrator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// allButSchedules is a server whose only user may publish everything but the events of schedules.
const allButSchedules = `
jetstream {}
authorization {
    users: [ { user: node, password: p, permissions: { publish: { deny: ["tranche.event.schedule.>"] } } } ]
}`

// addEvents stores events, older than all before, whose payload has so many bytes beside its braces.
func (b *bundle) addEvents(t *testing.T, kind string, n, size int) {
	t.Helper()
	b.Exec(t, `INSERT INTO run_event (id, run_id, generation, kind, payload, at)
		SELECT gen_random_uuid(), gen_random_uuid(), 1, $1, jsonb_build_object('x', repeat('y', $3)),
			(SELECT coalesce(min(at), tranche_now()) - interval '1 s' FROM run_event)
		FROM generate_series(1, $2)`, kind, n, size)
}

func (b *bundle) waiting(t *testing.T, kind string) (n int) {
	t.Helper()
	err := b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM run_event WHERE kind = $1 AND published_at IS NULL`, kind).
		Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// NATS takes no events of one kind, and others are larger than a message may be. However many these are, and although
// they are the older ones, those of other kinds are published; once the permission is granted, these are as well.
func TestEventsThatAreNotTakenKeepNoOthers(t *testing.T) {
	t.Parallel()
	b := &bundle{&nodetest.Bundle{Pool: testenv.Pool(t)}}
	b.Store = database.New(b.Pool)
	const refused, large = 250, 3
	b.addEvents(t, "completed", 120, 0)
	b.addEvents(t, "paused", large, 2<<20)
	b.addEvents(t, "schedule.missed", refused, 0)
	server := testenv.NATSByConfig(t, allButSchedules)
	b.Node = b.Join(t, b.Store, server.Conn(t, "node", "p", "_INBOX"), nodetest.Config(t)).Node
	b.Node.PublishEvents()
	nodetest.Until(t, "the events that may be published are", func() bool { return b.waiting(t, "completed") == 0 })
	if n, m := b.waiting(t, "schedule.missed"), b.waiting(t, "paused"); n != refused || m != large {
		t.Errorf("%d refused and %d large events wait; want %d and %d", n, m, refused, large)
	}
	b.addEvents(t, "completed", 1, 0) // older than the others
	nodetest.Until(t, "one more is published", func() bool { return b.waiting(t, "completed") == 0 })
	server.Reload(t, strings.Replace(allButSchedules, "schedule.>", "nothing.>", 1))
	nodetest.Until(t, "the permission is noticed", func() bool { return b.waiting(t, "schedule.missed") == 0 })
	if n := b.waiting(t, "paused"); n != large {
		t.Errorf("%d large events wait; want %d", n, large)
	}
}

// listen hears the events of runs, as whoever listens over core NATS does: also what JetStream knows already.
func listen(t *testing.T, nc *nats.Conn) *nats.Subscription {
	t.Helper()
	told, err := nc.SubscribeSync(wire.EventSubject("run.>"))
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return told
}

// wantTold checks that the next event is of that kind, with the id that the database knows it by.
func (b *bundle) wantTold(t *testing.T, told *nats.Subscription, kind string, run workqueue.RunID) {
	t.Helper()
	msg, err := told.NextMsg(time.Minute)
	if err != nil {
		t.Fatalf("event %s: %v", kind, err)
	}
	id := msg.Header.Get(nats.MsgIdHdr)
	n := b.Number(t, `SELECT count(*) FROM run_event WHERE id::text = $1 AND kind = $2 AND run_id = $3`, id, kind, run)
	if msg.Subject != wire.EventSubject("run."+kind) || n != 1 {
		t.Errorf("%s is told under id %s; want the event %s of the database", msg.Subject, id, kind)
	}
}

// older gives each completion an event beside it which is older, in the same commit.
const older = `
CREATE FUNCTION older() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    INSERT INTO run_event (id, run_id, generation, kind, payload, at)
    VALUES (gen_random_uuid(), NEW.run_id, NEW.generation, 'paused', '{}', NEW.at - interval '1 s');
    RETURN NULL;
END $$;
CREATE TRIGGER older AFTER INSERT ON run_event FOR EACH ROW WHEN (NEW.kind = 'completed') EXECUTE FUNCTION older()`

// A completion is published without a look at the outbox, so it overtakes what waits there. That is told after it, and
// neither of them twice.
func TestACompletionOvertakesOlderEvents(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t, testenv.Pool(t), embedded.NATSConfig{})}
	b.Exec(t, older)
	b.addEvents(t, "schedule.missed", 1, 0)
	cfg := nodetest.Config(t)
	cfg.LeaseTTL = time.Hour // the outbox is read once by itself
	b.Node = b.Join(t, b.Store, testenv.Conn(t, b.NS), cfg).Node
	nodetest.Until(t, "the outbox was read", func() bool { return b.waiting(t, "schedule.missed") == 0 })
	told := listen(t, b.NC)
	run := b.Start(t, nodetest.Request("statement"), 10)
	b.wantTold(t, told, "started", run)
	nodetest.Until(t, "the outbox was read again", func() bool { return b.waiting(t, "started") == 0 })
	b.Serve(t, "statement", nodetest.Echo)
	b.wantTold(t, told, "completed", run)
	b.wantTold(t, told, "paused", run)
	nodetest.Until(t, "both are marked", func() bool {
		return b.waiting(t, "completed") == 0 && b.waiting(t, "paused") == 0
	})
	b.Node.PublishEvents() // nothing waits
	b.addEvents(t, "rerun", 1, 0)
	b.Node.PublishEvents()
	msg, err := told.NextMsg(time.Minute)
	if err != nil || msg.Subject != wire.EventSubject("run.rerun") {
		t.Errorf("%+v is told once more, %v", msg, err)
	}
}

// NATS refuses the event that was just committed. It waits in the outbox, and is told from there once it may be.
func TestARefusedCompletionIsLeftToTheOutbox(t *testing.T) {
	t.Parallel()
	b := &bundle{&nodetest.Bundle{Pool: testenv.Pool(t)}}
	b.Store = database.New(b.Pool)
	noCompletions := strings.Replace(allButSchedules, "schedule.>", "run.completed", 1)
	server := testenv.NATSByConfig(t, noCompletions)
	b.NC = server.Conn(t, "node", "p", "_INBOX")
	core, logs := observer.New(zapcore.WarnLevel)
	cfg := nodetest.Config(t)
	cfg.Log = zap.New(core)
	b.Node = b.Join(t, b.Store, server.Conn(t, "node", "p", "_INBOX"), cfg).Node
	told := listen(t, b.NC)
	nodetest.ServeOn(t, server.Conn(t, "node", "p", "_INBOX"), "statement", nodetest.Echo)
	run := b.Start(t, nodetest.Request("statement"), 10)
	b.wantTold(t, told, "started", run)
	nodetest.Until(t, "the refusal is met", func() bool { return logs.FilterMessageSnippet("publish events").Len() > 0 })
	if n := b.waiting(t, "completed"); n != 1 {
		t.Errorf("%d completions wait; want one", n)
	}
	server.Reload(t, strings.Replace(noCompletions, "run.completed", "nothing.>", 1))
	b.wantTold(t, told, "completed", run)
	nodetest.Until(t, "it is marked", func() bool { return b.waiting(t, "completed") == 0 })
}
