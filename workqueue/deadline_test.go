package workqueue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// pace does what the leader does every few seconds, and returns the run as it is then.
func (b *bench) pace(lease workqueue.Lease, run workqueue.RunID) *inspect.RunView {
	b.Helper()
	due := testenv.Must(inspect.New(b.Store).Deadlines(b.Context()))(b)
	for _, p := range testenv.Must(due.Paces(b.Context(), func(workqueue.RunID) bool { return true }))(b) {
		testenv.Must(control.New(b.Store).SetPace(b.Context(), lease, &p))(b)
	}
	return testenv.Must(inspect.New(b.Store).Run(b.Context(), run))(b)
}

// A gentle run gets a cap by which claims go, one that will be late says so once, with what would be enough, and takes
// it back once; each change is in the endpoint's history and in the audit log, and none when nothing changes.
func TestARunIsPacedToItsTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(10)
	req.Steps[0].InFlight = 8
	req.DoneBy, req.Gentle = new(time.Now().Add(3*time.Hour)), true
	run, lease := b.Load(req, 4000), b.Lead()
	endpoint := req.Steps[0].Endpoint
	for range 5 {
		b.Record(storetest.Whole(b.Claim(run, 1)[0]))
	}
	b.Exec(`UPDATE work_slice SET created_at = ended_at - interval '8 seconds' WHERE ended_at IS NOT NULL`)
	view := b.pace(lease, run)
	limit := view.Steps[0].Cap
	if limit < 1 || limit > 2 || view.AtRisk != nil || view.DoneBy == nil || !view.Gentle {
		t.Fatalf("it has a cap of %d, %+v", limit, view.AtRisk)
	}
	if more := b.Claim(run, 8); len(more) > limit {
		t.Errorf("it claims %d beside a cap of %d", len(more), limit)
	}
	b.pace(lease, run)
	changes := testenv.Must(inspect.New(b.Store).PastPaces(t.Context(), endpoint, 10))(t)
	if len(changes) != 1 || changes[0].What != "cap" || !strings.Contains(changes[0].Reason, "has the deadline") {
		t.Errorf("the endpoint's history says %+v", changes)
	}
	b.Set(control.RunChange{Run: run, DoneBy: new(time.Now().Add(time.Minute))})
	for range 2 {
		view = b.pace(lease, run)
	}
	if view.Steps[0].Cap != 0 || view.AtRisk == nil || view.AtRisk.Late == "" || view.AtRisk.Since.IsZero() ||
		view.AtRisk.Fix == nil || !strings.Contains(view.AtRisk.Fix.Text, "from 8 to ") {
		t.Errorf("it has a cap of %d, and is at risk: %+v", view.Steps[0].Cap, view.AtRisk)
	}
	look := inspect.New(b.Store)
	testenv.Has(t, testenv.Must(look.Lateness(t.Context(), run))(t), " after its done_by", "at once it")
	fix := view.AtRisk.Fix
	b.Set(control.RunChange{Run: run, DoneBy: new(time.Now().Add(2 * time.Minute))})
	if risk := testenv.Must(look.Run(t.Context(), run))(t).AtRisk; risk == nil || risk.Late == view.AtRisk.Late ||
		!risk.Since.Equal(view.AtRisk.Since) || risk.Fix != nil || fix == nil {
		t.Errorf("with a minute more it is at risk: %+v; before %+v", risk, view.AtRisk)
	}
	b.Set(control.RunChange{Run: run, DoneBy: new(time.Now().Add(5 * time.Hour)), Gentle: new(false)})
	testenv.Same(t, testenv.Must(look.Run(t.Context(), run))(t).AtRisk, nil,
		"with five hours it is at risk until someone looks")
	for range 2 {
		view = b.pace(lease, run)
	}
	if view.AtRisk != nil || view.Steps[0].Cap != 0 {
		t.Errorf("it has a cap of %d, and is at risk: %+v", view.Steps[0].Cap, view.AtRisk)
	}
	testenv.SameList(t, b.Events(run), []string{"started", "deadline_at_risk", "deadline_at_risk"}, "its events")
	testenv.SameList(t, b.Actions(run), []string{"start by test", "pace by tranche", "set by ann", "pace by tranche",
		"set by ann", "set by ann"}, "the audit log")
	b.Set(control.RunChange{Run: run, DoneBy: &time.Time{}})
	testenv.Same(t, testenv.Must(inspect.New(b.Store).Deadlines(t.Context()))(t), nil, "it is still to be done by a time")
	testenv.Advance(t, b.Pool, time.Hour) // only the database's clock counts
	for _, c := range []control.RunChange{{Gentle: new(true)}, {DoneBy: new(time.Now().Add(time.Minute))}} {
		c.Run = run
		_, err := control.New(b.Store).SetRun(t.Context(), c)
		testenv.Fails(t, err, "it takes %+v", c)
	}
}

// What was said of a run is withdrawn with its time, and a rerun after its time has none, and is not gentle.
func TestATimeIsTakenAway(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(10)
	req.DoneBy, req.Gentle = new(time.Now().Add(time.Hour)), true
	run := b.Load(req, 20)
	b.ApplySchedule("night", `{}`) // without a time
	b.Exec(`INSERT INTO schedule_occurrence (schedule, due_at, kind, version, state, start_at, run_id, ended_at)
		VALUES ('night', tranche_now(), 'due', 1, 'started', tranche_now(), $1, tranche_now())`, run)
	b.Set(control.RunChange{Run: run, Gentle: new(false)})
	testenv.Same(t, b.Number(`SELECT count(done_by) FROM schedule_occurrence`), 0, "times that the schedule did not set")
	const atRisk = `UPDATE batchrun SET at_risk = jsonb_build_object('ends', done_by + interval '1 h') WHERE id = $1`
	b.Exec(atRisk, run)
	b.Set(control.RunChange{Run: run, DoneBy: &time.Time{}})
	testenv.Same(t, b.Number(`SELECT count(*) FROM run_event WHERE run_id = $1 AND kind = 'deadline_at_risk'
		AND payload->>'at_risk' = 'false'`, run), 1, "events that it is not at risk any more")
	req.IdempotencyKey = "key"
	run = b.Load(req, 20)
	b.Finish(run)
	b.Exec(`UPDATE batchrun SET done_by = tranche_now() - interval '1 s' WHERE id = $1`, run)
	b.Rerun(run, redo.Selection{Ranges: []redo.Range{{To: 5}}})
	if view := testenv.Must(inspect.New(b.Store).Run(t.Context(), run))(t); view.DoneBy != nil || view.Gentle {
		t.Errorf("the rerun is to be done by %v, gently: %t", view.DoneBy, view.Gentle)
	}
	testenv.Advance(t, b.Pool, 2*time.Hour)
	testenv.Same(t, b.Load(req, 20), run, "the same start is another run")
	req.IdempotencyKey = ""
	_, err := b.TryLoad(req, nil)
	testenv.Says(t, testenv.As[*workqueue.SettingError](t, err, "the start"), " has passed; ", "to be done in the past")
}

// What requests cost outlives the run that they were of.
func TestADeletedRunLeavesItsProfile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, lease := b.Load(storetest.Chunked(10), 100), b.Lead()
	b.Finish(run)
	profiles, until, err := inspect.New(b.Store).Profiles(t.Context(), time.Time{})
	if err != nil || len(profiles) != 1 || !until.Equal(profiles[0].At) {
		t.Fatalf("%+v until %s, %v", profiles, until, err)
	}
	testenv.NoError(t, control.New(b.Store).KeepProfiles(t.Context(), lease, append(profiles, profiles...)))
	b.Exec(`DELETE FROM work_slice`)
	next := b.Load(storetest.Chunked(10), 100)
	if f := testenv.Must(inspect.New(b.Store).ForecastRun(t.Context(), next))(t).Forecast; f.P50 == nil {
		t.Errorf("of the next run it says %+v", f)
	}
	if again, _, err := inspect.New(b.Store).Profiles(t.Context(), time.Time{}); err != nil || len(again) > 0 {
		t.Errorf("again: %+v, %v", again, err)
	}
}

// A run with twice the share gets two thirds of a budget.
func TestSharesOfABudget(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(1)
	req.Steps[0].InFlight = 100
	first, second := b.Load(req, 100), b.Load(req, 100)
	b.Exec(`INSERT INTO endpoint_setting (endpoint, max_in_flight) VALUES ($1, 9)`, req.Steps[0].Endpoint)
	b.Exec(`UPDATE run_step SET share = 2 WHERE run_id = $1`, first)
	for range 9 {
		b.Claim(first, 1)
		b.Claim(second, 1)
	}
	for run, want := range map[workqueue.RunID]int{first: 6, second: 3} {
		testenv.Same(t, b.Number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND state = 'claimed'`, run), want,
			"slices of run %s in flight", run)
	}
}
