package report_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/report"
)

func TestHistory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	before := b.Load(storetest.Request(), 1)
	run := b.Load(storetest.Request(), 3)
	ctl := control.New(b.Store)
	testenv.Must(ctl.Pause(t.Context(), control.Control{Run: run, Actor: "ann", Reason: "lunch"}))(t)
	testenv.NoError(t, ctl.Note(t.Context(), run, "the bank\x00 called", "bob"))
	testenv.Must(ctl.Resume(t.Context(), control.Control{Run: run, Actor: "ann"}, nil))(t)
	b.Exec(`INSERT INTO endpoint_change (endpoint, what, before, after, reason)
		VALUES ($1, 'breaker', 'closed', 'open', '9 of 10 failed'), ($1, 'rate', '1', '2', 'no matter'),
			('elsewhere', 'breaker', 'closed', 'open', 'no matter')`, storetest.Endpoint)
	b.Exec(`INSERT INTO endpoint_change (at, endpoint, what, before, after, reason)
		SELECT created_at - interval '1 hour', $1, 'breaker', 'open', 'closed', 'before its time' FROM batchrun`,
		storetest.Endpoint)
	b.Exec(`INSERT INTO alert (name, version, state, spec, source, created_by, changed_by, since)
		VALUES ('ops', 1, 'active', '{}', '', 'ann', 'ann', tranche_now())`)
	b.Exec(`INSERT INTO alert_message (id, alert, what, grp, severity, body)
		VALUES ($1, 'ops', 'alert', 'g', 'warning', jsonb_build_object('title', 'held', 'begun', $2::text)),
			($3, 'ops', 'alert', 'h', 'warning', '{"title": "of another"}')`, uuid.New(), run, uuid.New())
	b.Finish(run)
	b.Exec(`UPDATE work_slice SET service = 'bills@1.2.0 ' || id WHERE run_id = $1`, run)

	entries := testenv.Must(report.New(b.Store).History(t.Context(), run))(t)
	var got []string
	for i := range entries {
		e := &entries[i]
		got = append(got, fmt.Sprint(e.Kind, " ", e.What, " ", e.Who, " ", e.Text))
		if i > 0 && e.At.After(entries[i-1].At) {
			t.Errorf("%v stands after %v", e, entries[i-1])
		}
	}
	slices.Sort(got)
	want := []string{
		"action pause ann lunch", "action resume ann ", "action start test ", "alert ops waiting held",
		"breaker open " + storetest.Endpoint + " 9 of 10 failed", "event completed tranche generation 1",
		"note note bob the bank\ufffd called",
		"service bills@1.2.0 " + storetest.Endpoint + " ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
	if entries, err := report.New(b.Store).History(t.Context(), before); err != nil || len(entries) < 1 {
		t.Errorf("of another: %v, %v", entries, err)
	}
	for _, err := range []error{
		ctl.Note(t.Context(), workqueue.RunID(uuid.New()), "of nothing", "bob"),
		func() error {
			_, err := report.New(b.Store).History(t.Context(), workqueue.RunID(uuid.New()))
			return err
		}(),
	} {
		if !errors.Is(err, workqueue.ErrNotFound) {
			t.Errorf("of no run: %v; want ErrNotFound", err)
		}
	}
}
