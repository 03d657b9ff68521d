package servers

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	healthstore "github.com/tranchehq/tranche/workqueue/health"
)

// tooLate is how long after there is room again a run may take, beside what it has to do.
const tooLate = 30 * time.Second

// slowUntil takes a second for each chunk until the disk is full, so that the run is not over before, however late that
// comes.
func slowUntil(full *atomic.Bool) func(context.Context, *nodetest.Chunk) error {
	return paced(func() time.Duration {
		if full.Load() {
			return 50 * time.Millisecond
		}
		return time.Second
	})
}

// JetStream's disk is full in the middle of a run. The server keeps the write error permanently: the run continues
// because its streams are replaced.
func TestTheDiskIsFull(t *testing.T) {
	t.Parallel()
	for name, private := range map[string]bool{"nats-server": false, "the private server": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := startOnDisk(t, private)
			w := setup(t, ns.URL())
			w.node()
			w.node()
			full := new(atomic.Bool)
			w.service("statement", slowUntil(full))
			const items = 20_000
			run := w.start("statement", items, 100, 16)
			w.until("the run is in progress", func() bool { return w.done(run) >= 1_000 })
			ns.FillDisk(t)
			w.until("the server could not write", func() bool { return ns.Said("write error") })
			full.Store(true)
			done := w.done(run)
			w.until("the leader finds no room", func() bool {
				return w.number(`SELECT count(*) FROM stream_fault WHERE detail <> ''`) > 0
			})
			nc := w.dial()
			w.until("everybody is told of the disk", func() bool { return w.tellsOfDisk(run, nc) })
			ns.FreeDisk(t)
			room := time.Now()
			w.until("it continues", func() bool { return w.done(run) > done+1_000 })
			if took := time.Since(room); took > tooLate {
				t.Errorf("it continued %s after there was room", took)
			}
			w.wantSound(run, items)
			w.until("every stream takes messages", func() bool { return w.number(`SELECT count(*) FROM stream_fault`) == 0 })
			w.wantUnblamed(run)
		})
	}
}

// The disk was full for a moment only. No one would know, but that nothing is stored since.
func TestTheDiskWasFullForAMoment(t *testing.T) {
	t.Parallel()
	ns := startOnDisk(t, false)
	w := setup(t, ns.URL())
	w.node()
	full := new(atomic.Bool)
	w.service("statement", slowUntil(full))
	const items = 20_000
	run := w.start("statement", items, 100, 16)
	w.until("the run is in progress", func() bool { return w.done(run) >= 1_000 })
	ns.FillDisk(t)
	w.until("the server could not write requests", func() bool {
		w.publish(wire.WorkSubject("nobody"), "R1") // all that the run may have out may be out
		return ns.Said("[TRANCHE_WORK] Critical write error")
	})
	full.Store(true)
	ns.FreeDisk(t)
	w.wantSound(run, items)
	w.wantUnblamed(run)
	if n := w.number(`SELECT epoch FROM stream_epoch`); n < 2 {
		t.Error("no stream was replaced")
	}
}

// wantUnblamed checks that no item lost an attempt.
func (w *world) wantUnblamed(run workqueue.RunID) {
	w.Helper()
	testenv.Same(w, w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND failures > 0`, run), 0,
		"slices that it cost attempts: %v", w.causes(run))
}

// tellsOfDisk reports whether whoever asks is told of the disk, and of no service.
func (w *world) tellsOfDisk(run workqueue.RunID, nc *nats.Conn) bool {
	w.Helper()
	e := testenv.Must(healthstore.New(w.Store).Explain(w.Context(), run))(w)
	for _, g := range e.Groups {
		if g.Reason != healthstore.ReasonUnwritable || g.Owner != healthstore.OwnerOperator ||
			!strings.Contains(g.Why, "disk") || g.Who != "the operator of NATS" {
			w.Logf("%d items are explained by %s, whose turn it is is %s: %s", g.Items, g.Reason, g.Who, g.Why)
			return false
		}
	}
	watch := testenv.Must(health.New(health.Config{Store: w.Store, NC: nc, Host: "here"}))(w)
	defer watch.Wait()
	report := testenv.Must(watch.Report(w.Context()))(w)
	return len(e.Groups) > 0 && slices.ContainsFunc(report.Conditions, func(c healthstore.Condition) bool {
		return c.Kind == healthstore.Disk && c.Severity == healthstore.Critical && strings.Contains(c.Detail, "full disk")
	})
}

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
		return false // it is just being recreated
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
	second := w.start("statement", items, 100, 4) // the node reports it, and meets what is broken
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
