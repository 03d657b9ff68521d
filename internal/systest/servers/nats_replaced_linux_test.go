package servers

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// refuseAgain refuses to have events told again, and counts how often; a transaction that fails takes no count back.
const refuseAgain = `
CREATE SEQUENCE refused;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM nextval('refused'); RAISE 'not now'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON run_event FOR EACH ROW
WHEN (OLD.published_at IS NOT NULL AND NEW.published_at IS NULL) EXECUTE FUNCTION refuse()`

func (w *world) exec(sql string) {
	w.Helper()
	testenv.Must(w.Pool.Exec(w.Context(), sql))(w)
}

// made returns when a stream was made; the zero time while there is none.
func (w *world) made(name string) time.Time {
	w.Helper()
	stream, err := w.js.Stream(w.Context(), name)
	if err != nil {
		return time.Time{}
	}
	return stream.CachedInfo().Created
}

// replaced reports whether a stream has been made since.
func (w *world) replaced(name string, since time.Time) bool { return w.made(name).After(since) }

// letter publishes a dead letter, and reports whether JetStream has taken it.
func (w *world) letter(id string) bool { return w.publish(wire.DeadSubject("accounts"), id) }

// publish publishes a message, and reports whether a stream has taken it.
func (w *world) publish(subject, id string) bool {
	ctx, cancel := context.WithTimeout(w.Context(), time.Second)
	defer cancel()
	_, err := w.js.Publish(ctx, subject, []byte(id), jetstream.WithMsgID(id))
	return err == nil
}

// told reports whether the stream of events holds the completion of a run, under the id that the database knows.
func (w *world) told(run workqueue.RunID) bool {
	w.Helper()
	const completion = `SELECT id::text FROM run_event WHERE run_id = $1 AND kind = 'completed'`
	var id string
	testenv.NoError(w, w.Pool.QueryRow(w.Context(), completion, run).Scan(&id))
	consumer, err := w.js.OrderedConsumer(w.Context(), wire.StreamEvent, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{wire.EventSubject("run.completed")}})
	if err != nil {
		return false // it is just being made again
	}
	batch, err := consumer.FetchNoWait(100)
	if err != nil {
		return false
	}
	found := false
	for msg := range batch.Messages() {
		found = found || msg.Headers().Get(jetstream.MsgIDHeader) == id
	}
	return found
}

// The streams of dead letters and of events are broken. Letters that lie in theirs are taken in before it is replaced,
// and what was told is told again after the other one was, also when the database would not have that at first.
func TestLettersAndEventsOutliveTheirStreams(t *testing.T) {
	t.Parallel()
	ns := startOnDisk(t, false)
	w := setup(t, ns.URL())
	w.node()
	w.service("statement", nodetest.Echo)
	const items = 300
	first := w.start("statement", items, 100, 4)
	w.wantSound(first, items)
	w.until("it is told", func() bool { return w.told(first) })
	w.until("that is marked", func() bool {
		return w.number(`SELECT count(*) FROM run_event WHERE published_at IS NULL`) == 0
	})
	w.exec(`ALTER TABLE dead_letter RENAME TO away`)                      // so that letters stay where they are
	w.until("the letter is taken", func() bool { return w.letter("L1") }) // a server may be slow, and keeps one of them
	w.exec(refuseAgain)
	letters, events := w.made(wire.StreamDead), w.made(wire.StreamEvent)

	ns.FillDisk(t)
	if w.letter("L2") {
		t.Fatal("the disk is not full")
	}
	second := w.start("statement", items, 100, 4) // the node tells of it, and meets what is broken
	w.until("the leader finds no room", func() bool {
		return w.number(`SELECT count(*) FROM stream_fault WHERE detail <> ''`) > 0
	})
	ns.FreeDisk(t)
	w.until("both are known to be broken", func() bool {
		return w.number(`SELECT count(*) FROM stream_fault WHERE stream IN ('TRANCHE_DEAD', 'TRANCHE_EVENT')`) == 2
	})
	w.until("events were to be told again", func() bool { return w.number(`SELECT is_called::int FROM refused`) == 1 })
	w.exec(`DROP TRIGGER refuse ON run_event`)
	w.until("the stream of events is replaced", func() bool { return w.replaced(wire.StreamEvent, events) })
	w.until("what was told is told again", func() bool { return w.told(first) })
	w.wantSound(second, items)
	w.until("what came since is told", func() bool { return w.told(second) })

	if w.replaced(wire.StreamDead, letters) || w.held(wire.StreamDead) != 1 {
		t.Error("the stream of letters was replaced with a letter in it")
	}
	w.exec(`ALTER TABLE away RENAME TO dead_letter`)
	w.until("the stream of letters is replaced", func() bool { return w.replaced(wire.StreamDead, letters) })
	w.until("the letter that no one took is taken", func() bool { return w.letter("L2") })
	w.until("both letters are there", func() bool { return w.number(`SELECT count(*) FROM dead_letter`) == 2 })
	w.until("every stream takes messages", func() bool { return w.number(`SELECT count(*) FROM stream_fault`) == 0 })
}
