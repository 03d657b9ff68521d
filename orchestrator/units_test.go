package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// Each event is published by one of the two ways, and by the outbox's reader whenever the other one gives it up.
func TestFreshEvents(t *testing.T) {
	t.Parallel()
	f := newFreshEvents()
	kept, refused, read := uuid.New(), uuid.New(), uuid.New()
	if f.passes(read) {
		t.Error("what no one knows is passed over")
	}
	for _, id := range []uuid.UUID{kept, refused, read} {
		f.add(freshEvent{Event: workqueue.Event{ID: id}})
	}
	var taken []uuid.UUID
	for _, e := range f.take() {
		taken = append(taken, e.ID)
	}
	testenv.SameList(t, taken, []uuid.UUID{kept, refused}, "published, and not what was read from the outbox")
	f.end(kept, true)
	f.end(refused, false)
	if !f.passes(kept) || f.passes(refused) {
		t.Error("the outbox's reader is to pass over what was published, and not what was refused")
	}
	failure := errors.New("no database")
	err := f.mark(func(ids []uuid.UUID) error {
		if !slices.Equal(ids, []uuid.UUID{kept}) || !f.passes(kept) {
			t.Errorf("%v are marked; want %v, which is passed over until then", ids, kept)
		}
		return failure
	})
	if !errors.Is(err, failure) || f.passes(kept) {
		t.Errorf("what could not be marked is left to the outbox's reader: %v", err)
	}
	for range maxFresh + 1 {
		f.add(freshEvent{Event: workqueue.Event{ID: uuid.New()}})
	}
	testenv.Same(t, len(f.take()), maxFresh, "are kept")
}

// What happened to a run is told on a subject of runs, all else on one of its own, and the event of a tracker as it
// stands in the outbox.
func TestMessagesOfEvents(t *testing.T) {
	t.Parallel()
	const whole = `{"id":"ID","run":"RUN","generation":2,"kind":"KIND","at":"AT","detail":{"x":1}}`
	run, id := workqueue.NewRunID(), uuid.New()
	for kind, want := range map[string]struct{ subject, body string }{
		"completed":         {"run.completed", whole},
		"schedule.missed":   {"schedule.missed", whole},
		"tracker.completed": {"tracker.completed", `{"x":1}`},
	} {
		e := workqueue.Event{ID: id, Run: run, Generation: 2, Kind: workqueue.EventKind(kind), Payload: []byte(`{"x":1}`)}
		subject, body, err := eventMessage(&e)
		at, _ := e.At.MarshalText()
		text := strings.NewReplacer("ID", id.String(), "RUN", run.String(), "KIND", kind, "AT", string(at)).Replace(want.body)
		if err != nil || subject != wire.EventSubject(want.subject) || string(body) != text {
			t.Errorf("%s is told on %s: %s, %v; want %s", kind, subject, body, err, text)
		}
	}
}

// Slices that come due close together wake the node once, and those that are far away do not.
func TestAlarms(t *testing.T) {
	t.Parallel()
	var a alarms
	now := time.Unix(1000, 0)
	testenv.Same(t, a.next(now), 0, "there is one from the beginning")
	a.set(now, []time.Duration{2 * time.Second, time.Second, time.Second + time.Millisecond, time.Hour})
	testenv.Same(t, len(a.at), 2, "times kept: two are about the same, one is too far away")
	for _, want := range []time.Duration{time.Second, 2 * time.Second} {
		wait := a.next(now)
		if due := now.Add(wait).Sub(time.Unix(1000, 0)); due < want || due > want+alarmTick {
			t.Errorf("the next goes off at %s; want %s", due, want)
		}
		now = now.Add(wait)
	}
	if a.next(now) != 0 || len(a.at) != 0 {
		t.Errorf("%v are kept that have passed", a.at)
	}
}

// failedLoads are loads of which something is left, until PostgreSQL takes it back or says that it is a run.
type failedLoads struct {
	away   atomic.Bool
	sealed workqueue.RunID
	asked  map[workqueue.RunID]int
}

func (f *failedLoads) ClearLoad(_ context.Context, run workqueue.RunID) (bool, error) {
	if f.asked[run]++; f.away.Load() {
		return false, errors.New("no connection")
	}
	return run == f.sealed, nil
}

// What a failed load has left is undone by the node whose session lives on, until nothing more of it can appear.
func TestFailedLoadsAreCleared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		left := workqueue.NewRunID()
		store := &failedLoads{sealed: workqueue.NewRunID(), asked: map[workqueue.RunID]int{}}
		store.away.Store(true)
		r := &Runs{node: &core.Core{Log: zaptest.NewLogger(t)}, loads: store}
		for _, run := range []workqueue.RunID{left, store.sealed} {
			r.noteUncleared(fmt.Errorf("start: %w", &workqueue.CleanupPendingError{Run: run}))
		}
		r.noteUncleared(errors.New("refused"))
		ctx, cancel := context.WithTimeout(t.Context(), 3*settled)
		defer cancel()
		time.AfterFunc(settled*3/2+1, func() { store.away.Store(false) })
		r.keepClear(ctx, settled/2)
		if store.asked[left] != 4 || store.asked[store.sealed] != 4 || len(r.uncleared.all()) != 0 {
			t.Errorf("they were cleared %v times, and %v are left", store.asked, r.uncleared.all())
		}
	})
}

// allButSchedules is a server of which one user may publish everything but the events of schedules, another everything.
const allButSchedules = `
jetstream {}
authorization { users: [
    { user: some, password: p, permissions: { publish: { deny: ["tranche.event.schedule.>"] } } }
    { user: all, password: p }
] }`

// Events that NATS refuses, for their kind or size, do not delay others, however many and old they are. With the
// permission those of the kind are published, too.
func TestRefusedEventsDelayNoOthers(t *testing.T) {
	t.Parallel()
	pool, server := testenv.Pool(t), testenv.NATSByConfig(t, allButSchedules)
	add := func(kind string, n, size int) { // older than all before
		testenv.Must(pool.Exec(t.Context(), `INSERT INTO run_event (id, run_id, generation, kind, payload, at)
			SELECT gen_random_uuid(), gen_random_uuid(), 1, $1, jsonb_build_object('x', repeat('y', $3)),
				(SELECT coalesce(min(at), tranche_now()) - interval '1 s' FROM run_event)
			FROM generate_series(1, $2)`, kind, n, size))(t)
	}
	publish := func(user string, completed, missed, paused int) error {
		t.Helper()
		nc := server.Conn(t, user, "p", "_INBOX")
		js := testenv.Must(jetstream.New(nc))(t)
		testenv.Must(js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: wire.StreamEvent,
			Subjects: []string{wire.EventSubject(">")}, Storage: jetstream.MemoryStorage}))(t)
		k := core.New(database.New(pool), nc, js, zaptest.NewLogger(t))
		p := &publisher{k, streams.NewKeeper(k, streams.Config{Try: func() {}}), newFreshEvents()}
		err := p.publishWaiting(t.Context())
		for errors.Is(err, context.DeadlineExceeded) { // of a machine that was stalled
			err = p.publishWaiting(t.Context())
		}
		for kind, want := range map[string]int{"completed": completed, "schedule.missed": missed, "paused": paused} {
			n := testenv.Number(t, pool, `SELECT count(*) FROM run_event WHERE kind = $1 AND published_at IS NULL`, kind)
			testenv.Same(t, n, want, "events of kind %s that wait", kind)
		}
		return err
	}
	const refused, large = 250, 3
	add("completed", 120, 0)
	add("paused", large, 1<<20)
	add("schedule.missed", refused, 0)
	for range 2 {
		testenv.Is(t, publish("some", 0, refused, large), nats.ErrPermissionViolation, "the refusal of a kind")
		add("completed", 1, 0)
	}
	testenv.Is(t, publish("all", 0, 0, large), nats.ErrMaxPayload, "the refusal of a size")
}
