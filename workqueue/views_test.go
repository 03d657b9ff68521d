package workqueue_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/forecast"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

func (b *bench) audit(f inspect.AuditFilter) inspect.AuditPage {
	b.Helper()
	return testenv.Must(inspect.New(b.Store).Audit(b.Context(), f))(b)
}

// What a run starts with is saved, although it may be set otherwise later.
func TestStartIsAuditedWithSettings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(7)
	req.MaxFailed, req.Priority, req.PlanVersion = "1%", 3, 4
	req.Steps[0].InFlightAuto, req.Steps[0].NoRetryCodes = true, []string{"BAD", "WORSE"}
	run := b.Load(req, 20)
	entry := b.audit(inspect.AuditFilter{Run: run, Action: "start"}).Entries[0]
	var after map[string]any
	testenv.NoError(t, json.Unmarshal(entry.After, &after))
	for name, want := range map[string]any{
		"plan": req.Plan, "version": 4.0, "items": 20.0, "chunk": "7", "max_failed": "1%", "priority": 3.0,
		"no_retry_codes": "BAD, WORSE", "endpoint": storetest.Endpoint, "canary": nil, "rate": nil,
	} {
		testenv.Same(t, fmt.Sprint(after[name]), fmt.Sprint(want), "%s", name)
	}
	if flight := fmt.Sprint(after["in_flight"]); !strings.HasPrefix(flight, "auto") {
		t.Errorf("in flight is %s; want auto", flight)
	}
}

// An active run has a forecast, the same in the list; one that waits says for what, and how long it takes then; a
// run of the same plan borrows what is known; what is supposed changes nothing.
func TestRunsAreForetold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(10), 400)
	look := inspect.New(b.Store)
	view := func(id workqueue.RunID) *forecast.Forecast {
		t.Helper()
		look := inspect.New(database.New(b.Pool)) // nothing is kept of an earlier look
		one := testenv.Must(look.ForecastRun(t.Context(), id))(t)
		list := testenv.Must(look.Runs(t.Context(), inspect.RunFilter{Words: []string{id.String()}}))(t)
		if f := list[0].Forecast; f.WhyNot != one.Forecast.WhyNot || f.WaitsFor != one.Forecast.WaitsFor ||
			(f.P50 == nil) != (one.Forecast.P50 == nil) {
			t.Errorf("the list says %+v, the run %+v", f, one.Forecast)
		}
		return one.Forecast
	}
	if f := view(run); f.P50 != nil || !strings.Contains(f.WhyNot, "fewer than 3 are of step") {
		t.Errorf("of a run that has done nothing it says %+v", f)
	}
	for range 5 {
		b.Record(storetest.Whole(b.Claim(run, 1)[0]))
	}
	b.Exec(`UPDATE work_slice SET created_at = ended_at - interval '8 seconds' WHERE ended_at IS NOT NULL`)
	b.Exec(`UPDATE batchrun SET started_at = tranche_now() - interval '1 hour'`)
	if f := view(run); f.P50 == nil || f.P10.After(*f.P50) || f.P50.After(*f.P90) || f.BoundBy == "" {
		t.Errorf("of a run that continues it says %+v", f)
	}
	other := b.Load(storetest.Chunked(10), 100)
	if f := view(other); f.P50 == nil {
		t.Errorf("of a run of the same plan it says %+v", f)
	}
	planned := storetest.Chunked(10)
	planned.DoneBy = new(time.Now())
	if f, late, err := look.Foresee(t.Context(), &planned, 1000); err != nil || f.P50 == nil || f.WhyNot != "" ||
		!strings.Contains(late, " after its done_by") {
		t.Errorf("of a run that may start it says %+v, %q, %v", f, late, err)
	}
	planned.Canary = 10
	if f, _, err := look.Foresee(t.Context(), &planned, 1000); err != nil || f.WaitsFor != "approval of its canary" ||
		f.WaitsFrom == nil {
		t.Errorf("of a run that may start with a canary it says %+v, %v", f, err)
	}
	before := b.Dump(run)
	supposed, err := look.Suppose(t.Context(), run, []string{"rate=1", "without=" + other.String()})
	all := supposed.Variants
	if err != nil || len(all) != 4 || len(all[0].Changes) != 0 || len(all[3].Changes) != 2 || b.Dump(run) != before ||
		!all[1].Forecast.P10.After(*all[0].Forecast.P90) {
		t.Errorf("it supposes %+v, %v", all, err)
	}
	_, err = look.Suppose(t.Context(), run, []string{"x.chunk=1"})
	_ = testenv.As[*workqueue.SettingError](t, err, "a step that does not exist")
	listed := func(foretold bool) {
		t.Helper()
		for _, r := range testenv.Must(look.Runs(t.Context(), inspect.RunFilter{}))(t) {
			f := r.Forecast
			if r.ID == other && ((f.P50 != nil) != foretold ||
				!foretold && f.WaitsFor == "" && !strings.Contains(f.WhyNot, "has changed since")) {
				t.Errorf("the list says %+v; whether a time is wanted: %v", f, foretold)
			}
		}
	}
	listed(true)
	b.PauseRun(other) // which a look at it sees, whatever was kept
	listed(false)
	if f := testenv.Must(look.ForecastRun(t.Context(), other))(t).Forecast; f.WaitsFor != "an operator to resume it" ||
		f.Then == nil || f.P50 != nil {
		t.Errorf("of a paused run it says %+v", f)
	}
	b.openBreaker()
	if f := view(run); !strings.Contains(f.WaitsFor, "to answer again") || f.Then == nil || f.P50 != nil {
		t.Errorf("of an endpoint that is down it says %+v", f)
	}
	testenv.Has(t, view(b.OpenRun(nil)).WhyNot, "until it is sealed", "of an open run it")
	b.Exec(`ALTER TABLE endpoint_setting RENAME COLUMN request_rate TO gone`) // so that it cannot be read
	failing, told := inspect.New(database.New(b.Pool)), 0
	failing.OnForecastError(func(error) { told++ })
	for range 3 {
		for _, r := range testenv.Must(failing.Runs(t.Context(), inspect.RunFilter{}))(t) {
			testenv.Has(t, r.Forecast.WhyNot, "could not be read", "of a run that cannot be forecast the list says %+v",
				r.Forecast)
		}
	}
	if f := testenv.Must(failing.ForecastRun(t.Context(), run))(t).Forecast; told > 2 ||
		!strings.Contains(f.WhyNot, "could not be read") {
		t.Errorf("it says %+v, and was reported %d times", f, told)
	}
}
