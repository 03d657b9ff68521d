package health_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	store "github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/schedule"
	sessionstore "github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Schedules that fail, that no one serves, or whose runs are late are reported until it is over.
func TestSchedulesInTrouble(t *testing.T) {
	t.Parallel()
	w := setup(t)
	session := w.session()
	lease := testenv.Must(sessionstore.New(w.store).Lead(t.Context(), session, time.Hour))(t)
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
		req.Session = session
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
