package health_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/control"
	store "github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/schedule"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Operations that are parked, or that no one flushes, are reported until it is over.
func TestCollectorsInTrouble(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, name := range []string{"parks", "late"} {
		spec := collector.CollectorSpec{Endpoint: "bills", MinSize: 10, MaxAge: collector.Span(time.Hour)}.WithDefaults()
		text := collector.Text{Name: name, Spec: spec}
		testenv.Must(collector.New(w.store).ApplyCollector(t.Context(), text, "test"))(t)
		ops := []collector.Op{{ID: "1", Key: "k", Payload: []byte("1")}, {ID: "2", Key: "k", Payload: []byte("2")}}
		_, _, err := collector.New(w.store).AddOps(t.Context(), name, 0, [][]collector.Op{ops})
		testenv.NoError(t, err)
	}
	of := ` WHERE collector = (SELECT id FROM collector WHERE name = $1)`
	w.exec(`UPDATE collector_op SET parked_at = tranche_now() - interval '2 h'`+of, "parks")
	w.exec(`UPDATE collector_key SET parked = untried, untried = 0, oldest_at = NULL, due_at = NULL`+of, "parks")
	w.appears(store.CollectorParked, "parks", store.Warning, "2 operations are parked", "2 h ago",
		"tranche collector requeue parks --all")
	testenv.MustSame(t, testenv.Must(collector.New(w.store).DropOps(t.Context(), "parks",
		collector.OpsSelection{All: true}, "test"))(t), 2, "dropped")
	w.goes(store.CollectorParked, "parks")

	if _, there := seen(w.report(w.watch), store.CollectorLate, "late"); there {
		t.Error("operations count as late that came just now")
	}
	w.exec(`UPDATE collector_key SET oldest_at = oldest_at - interval '75 min', due_at = due_at - interval '75 min'`+of,
		"late")
	w.exec(`UPDATE collector SET failures = 3, failure_code = 'no_listeners', failure_message = 'no one' WHERE name = $1`,
		"late")
	w.appears(store.CollectorLate, "late", store.Warning, "min longer than they should", "no_listeners: no one",
		"tranche collector show late")
	testenv.Must(collector.New(w.store).SetCollector(t.Context(), "late", workqueue.DocumentPaused, false, "ann"))(t)
	w.appears(store.CollectorLate, "late", store.Info, "ann paused it", "tranche collector resume late")
	w.exec(`UPDATE collector_key SET due_at = tranche_now(), oldest_at = tranche_now()`+of, "late")
	w.goes(store.CollectorLate, "late")

	testenv.NoError(t, collector.New(w.store).NoteRefused(t.Context(), "parks", "crm: no table"))
	w.appears(store.CollectorRefuses, "parks", store.Warning, "Adds have been refused", "crm: no table", "Fix the source",
		"tranche collector show parks --source")
	w.exec(`UPDATE collector SET refused_at = tranche_now() - interval '25 h' WHERE name = $1`, "parks")
	w.goes(store.CollectorRefuses, "parks")
}

// A flush that is in progress for longer than it may, or for long after one that came to nothing, is reported.
func TestFlushesThatHang(t *testing.T) {
	t.Parallel()
	w := setup(t)
	spec := collector.CollectorSpec{Endpoint: "bills", MinSize: 1, Timeout: collector.Span(time.Hour)}.WithDefaults()
	testenv.Must(collector.New(w.store).ApplyCollector(t.Context(), collector.Text{Name: "c", Spec: spec}, "test"))(t)
	ops := []collector.Op{{ID: "1", Key: "k7", Payload: []byte("1")}}
	_, _, err := collector.New(w.store).AddOps(t.Context(), "c", 0, [][]collector.Op{ops})
	testenv.NoError(t, err)
	session := testenv.Must(session.New(w.store).StartSession(t.Context(), session.NodeInfo{Host: "h"}, time.Hour))(t)
	claimed, err := collector.New(w.store).ClaimFlushes(t.Context(), collector.FlushRequest{Session: session, Collector: 1,
		Max: 1})
	if err != nil || len(claimed.Flushes) != 1 {
		t.Fatalf("claimed %+v, %v", claimed, err)
	}
	w.exec(`UPDATE collector_key SET flushed_at = tranche_now() - interval '20 min'`)
	if _, there := seen(w.report(w.watch), store.CollectorHangs, "c"); there {
		t.Error("a flush counts as hung that has its time yet")
	}
	w.exec(`UPDATE collector SET failures = 1, failure_code = 'deadline', failure_message = 'its time is over'`)
	w.appears(store.CollectorHangs, "c", store.Warning, "in progress for 20 min", "key is k7", "may take 1 h",
		"deadline: its time is over", "tranche endpoints show bills")
	w.exec(`UPDATE collector SET failures = 0`)
	w.goes(store.CollectorHangs, "c")
	w.exec(`UPDATE collector_key SET flushed_at = tranche_now() - interval '65 min'`)
	w.appears(store.CollectorHangs, "c", store.Critical, "in progress for 1 h")
	w.exec(`UPDATE collector_key SET flush = NULL, session_id = NULL, flush_until = NULL`)
	w.goes(store.CollectorHangs, "c")
}

// Schedules that fail, that no one serves, or whose runs are late are reported until it is over.
func TestSchedulesInTrouble(t *testing.T) {
	t.Parallel()
	w := setup(t)
	node := w.session()
	lease := testenv.Must(session.New(w.store).Lead(t.Context(), node, time.Hour))(t)
	hourly := func(_ json.RawMessage, after time.Time) (*time.Time, error) { return new(after.Add(time.Hour)), nil }
	for _, name := range []string{"fails", "idle", "late"} {
		doc := workqueue.Document{Name: name, Spec: json.RawMessage(`{}`), Source: "x"}
		testenv.Must(schedule.New(w.store).ApplySchedule(t.Context(),
			schedule.Text{Document: doc, Zone: "UTC", Next: hourly}, "test"))(t)
	}
	begin := func(name string) schedule.OccurrenceClaim {
		t.Helper()
		now := testenv.Must(schedule.New(w.store).RunScheduleNow(t.Context(), name, "test"))(t)
		claim, ok, err := schedule.New(w.store).BeginOccurrence(t.Context(), lease,
			schedule.OccurrenceKey{Schedule: name, Due: now.Due, Kind: now.Kind}, nil)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		return claim
	}
	start := func(name string) workqueue.RunID {
		t.Helper()
		req := request("bills")
		req.Session = node
		schedule.OfOccurrence(&req, begin(name))
		loaded := testenv.Must(start.New(w.store).Load(t.Context(), req, nodetest.Items(2)))(t)
		return loaded.Run
	}
	claim := begin("fails")
	if ok, err := schedule.New(w.store).EndOccurrence(t.Context(), claim,
		schedule.OccurrenceEnd{State: schedule.OccurrenceFailed, Reason: "there is no file"}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	w.appears(store.ScheduleFailing, "fails", store.Warning, "there is no file", "tranche schedule run-now fails")
	start("fails")
	w.goes(store.ScheduleFailing, "fails")

	w.exec(`UPDATE schedule SET next_due = tranche_now() - interval '2 min' WHERE name = 'idle'`)
	w.appears(store.ScheduleOverdue, "idle", store.Critical, "No leader has handled", "tranche nodes")
	w.exec(`UPDATE schedule SET next_due = tranche_now() WHERE name = 'idle'`)
	w.goes(store.ScheduleOverdue, "idle")
	begin("idle")
	const loading, occurrences = "not started yet. Its items are being loaded, for ", "tranche schedule history idle"
	w.exec(`UPDATE schedule_occurrence SET created_at = created_at - interval '8 h', due_at = due_at - interval '8 h'
		WHERE schedule = 'idle'`)
	w.goes(store.ScheduleOverdue, "idle") // it waited for its window, which has opened just now
	for _, state := range [][2]string{{"queued", "not started yet"}, {"starting", loading}} {
		w.exec(`UPDATE schedule_occurrence SET attempts = 2, state = $1 WHERE schedule = 'idle'`, state[0])
		w.appears(store.ScheduleOverdue, "idle", store.Warning, state[1], occurrences)
	}
	w.exec(`UPDATE schedule_occurrence SET attempts = 1 WHERE schedule = 'idle'`)
	w.goes(store.ScheduleOverdue, "idle")
	w.exec(`UPDATE schedule_occurrence SET began_at = began_at - interval '6 min' WHERE schedule = 'idle'`)
	w.appears(store.ScheduleOverdue, "idle", store.Warning, loading, occurrences)

	run := start("late")
	w.exec(`UPDATE batchrun SET done_by = tranche_now() + interval '1 h', at_risk = '{"since": "2026-11-27T01:00:00Z",
		"late": "40 min", "ends": "2026-11-27T06:40:00Z", "fix": {"text": "budget of a from 8 to 11", "command": "do it"}}'
		WHERE id = $1`, run)
	w.appears(store.RunAtRisk, run.String(), store.Warning, "Will be 40 min late", "budget of a from 8 to 11: `do it`")
	w.exec(`UPDATE schedule_occurrence SET late_at = tranche_now(), late_action = 'paused' WHERE schedule = 'late'`)
	testenv.Advance(w, w.pool, time.Hour)
	w.goes(store.RunAtRisk, run.String())
	w.appears(store.RunLate, run.String(), store.Warning, "did: paused", "tranche run explain "+run.String())
	testenv.Must(control.New(w.store).Cancel(t.Context(), control.Control{Run: run, Actor: "test"}))(t)
	w.goes(store.RunLate, run.String())
}
