package workqueue_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/start"
)

func (b *bench) resume(run workqueue.RunID) {
	b.Helper()
	testenv.Must(control.New(b.Store).Resume(b.Context(), storetest.Wish(run, ""), nil))(b)
}

func (b *bench) threshold(run workqueue.RunID, maxFailed string) {
	b.Helper()
	b.Set(control.RunChange{Run: run, MaxFailed: &maxFailed})
}

// checkThreshold fails the test unless the check ends as wanted.
func (b *bench) checkThreshold(run workqueue.RunID, want bool) {
	b.Helper()
	if held, err := control.New(b.Store).CheckThreshold(b.Context(), run); err != nil || held != want {
		b.Errorf("the threshold held the run: %v, %v; want %v", held, err, want)
	}
}

// wantHold compares a run's hold: "" or "kind by whom: why".
func (b *bench) wantHold(run workqueue.RunID, want string) {
	b.Helper()
	var got string
	err := b.Pool.QueryRow(b.Context(), `SELECT coalesce(hold || ' by ' || held_by || ': ' || hold_detail, '')
		FROM batchrun WHERE id = $1`, run).Scan(&got)
	testenv.NoError(b, err)
	if got != want {
		b.Errorf("the run's hold is %q; want %q", got, want)
	}
}

func TestPauseAndResumeAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second, paused, done := b.Load(storetest.Request(), 4), b.Load(storetest.Request(),
		4), b.Load(storetest.Request(), 4), b.Load(storetest.Request(), 4)
	b.Finish(done)
	b.PauseRun(paused)
	every := control.Control{All: true, Actor: "ann", Reason: "stop the world"}
	out, err := control.New(b.Store).Pause(t.Context(), every)
	if err != nil || !slices.Equal(out.Runs, []workqueue.RunID{first, second}) || len(out.Skipped) != 1 ||
		out.Skipped[0].Run != paused || !strings.Contains(out.Skipped[0].Why, "paused already") {
		t.Errorf("paused all: %+v, %v", out, err)
	}
	for _, run := range []workqueue.RunID{first, second} {
		b.wantHold(run, "operator by ann: stop the world")
		if n := len(b.Claim(run, storetest.Plenty)); n != 0 {
			t.Errorf("%d slices were claimed", n)
		}
	}
	b.threshold(second, "0")
	b.Exec(`UPDATE work_block SET ready = ready << 1, failed = B'0001'::bit(8192) WHERE run_id = $1`, second) // of four
	out, err = control.New(b.Store).Resume(t.Context(), every, nil)
	if err != nil || !slices.Equal(out.Runs, []workqueue.RunID{first, paused}) || len(out.Skipped) != 1 ||
		out.Skipped[0].Run != second || !strings.Contains(out.Skipped[0].Why, "1 of 4 items failed; the limit is 0") {
		t.Errorf("resumed all: %+v, %v", out, err)
	}
	b.wantHold(first, "")
	b.wantHold(second, "operator by ann: stop the world")
	all, err := control.New(b.Store).Cancel(t.Context(), every)
	if err != nil || len(all.Runs) != 3 || len(all.Skipped) != 0 {
		t.Errorf("cancelled all: %+v, %v; want three runs, a paused one among them", all, err)
	}
	b.WantState(second, "cancelled", 1)
}

func TestThreshold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 40)
	b.checkThreshold(run, false)
	b.threshold(run, "10%")
	bad := workqueue.SlotError{Code: "bad", Message: "m"}
	b.Record(storetest.Faulty(b.One(run), bad))
	b.checkThreshold(run, false) // 4 of 40 are 10%
	late := b.One(run)
	b.Record(storetest.Faulty(b.One(run), bad))
	due, err := control.New(b.Store).DueHolds(t.Context())
	if err != nil || len(due) != 1 || due[0] != (control.DueHold{Run: run, Threshold: true}) {
		t.Errorf("due: %+v, %v", due, err)
	}
	b.checkThreshold(run, true)
	b.checkThreshold(run, false)
	b.wantHold(run, "threshold by tranche: 8 of 40 items failed; the limit is 4 (--max-failed 10%)")
	if due, err = control.New(b.Store).DueHolds(t.Context()); err != nil || len(due) != 0 {
		t.Errorf("due once it is held: %+v, %v", due, err)
	}
	if n := len(b.Claim(run, storetest.Plenty)); n != 0 {
		t.Errorf("%d slices of a held run were claimed", n)
	}
	_, err = control.New(b.Store).Resume(t.Context(), storetest.Wish(run, ""), nil)
	b.WantRefused(err, "8 of 40 items failed", "--max-failed N", "tranche run rerun "+run.String()+" --failed")
	seven := "7"
	_, err = control.New(b.Store).Resume(t.Context(), storetest.Wish(run, ""), &seven)
	b.WantRefused(err, "the limit is 7 (--max-failed 7)")
	if n := b.Number(`SELECT failed_limit FROM batchrun WHERE id = $1`, run); n != 4 {
		t.Errorf("a refused resume set the limit to %d", n)
	}
	again := b.Rerun(run, redo.Selection{Codes: []string{"bad"}})
	if again.Hold != control.HoldThreshold || !strings.HasPrefix(again.HoldDetail, "8 of 40") {
		t.Errorf("the re-run of a held run says %+v", again)
	}
	b.resume(run) // they are no failures any more
	b.Record(storetest.Faulty(late, bad))
	b.checkThreshold(run, false)
	b.Record(storetest.Faulty(b.One(run), bad))
	b.checkThreshold(run, true)
	none := ""
	if _, err := control.New(b.Store).Resume(t.Context(), storetest.Wish(run, ""), &none); err != nil {
		t.Errorf("resume without a threshold: %v", err)
	}
	b.checkThreshold(run, false)
	b.Finish(run)
	b.WantState(run, "completed", 2)
	b.Check()
}

func TestFailedLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text    string
		items   int64
		limit   int64
		limited bool
	}{
		{"", 100, 0, false}, {"0", 100, 0, true}, {"500", 100, 500, true}, {"1%", 1_000_000, 10_000, true},
		{"1%", 199, 1, true}, {"0.5%", 1000, 5, true}, {"0.0001%", 1_000_000, 1, true}, {"100%", 7, 7, true},
		{"0%", 7, 0, true}, {"33.3333%", 2_147_475_456, 715_824_436, true},
	} {
		limit, limited, err := workqueue.FailedLimit(c.text, c.items)
		if err != nil || limit != c.limit || limited != c.limited {
			t.Errorf("%q of %d: %d, %v, %v; want %d, %v", c.text, c.items, limit, limited, err, c.limit, c.limited)
		}
	}
	var setting *workqueue.SettingError // see TestParseMaxFailed
	if _, _, err := workqueue.FailedLimit("3000000000", 100); !errors.As(err, &setting) {
		t.Errorf("more than there can be: %v", err)
	}
}

func (b *bench) cancelRun(run workqueue.RunID) {
	b.Helper()
	testenv.Must(control.New(b.Store).Cancel(b.Context(), control.Control{Run: run, Actor: "ann"}))(b)
}

func (b *bench) resumeCancelled(run workqueue.RunID) (control.Controlled, error) {
	return control.New(b.Store).Resume(b.Context(), control.Control{Run: run, Actor: "ann", Reason: "after all"}, nil)
}

// What cannot go on says why, and what to do instead.
func TestACancelledRunThatCannotGoOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		says string
		made func() workqueue.RunID
	}{
		{"carries it on; its items would be done twice", func() workqueue.RunID {
			run := b.Load(storetest.Request(), 5)
			b.cancelRun(run)
			b.Exec(`UPDATE batchrun SET from_run = $1 WHERE id = $2`, run, b.Load(storetest.Request(), 5))
			return run
		}},
		{"a load that was given up", func() workqueue.RunID {
			run := b.Load(storetest.Request(), 5)
			b.Exec(`UPDATE batchrun SET state = 'cancelled', sealed_at = NULL WHERE id = $1`, run)
			return run
		}},
		{"cancelled while it was open", func() workqueue.RunID {
			run := b.OpenRun(func(*start.OpenRequest) {})
			b.Add(run, storetest.Names(2))
			b.cancelRun(run)
			return run
		}},
		{"there is nothing to go on with", func() workqueue.RunID { return b.Ended(9, time.Hour) }},
	} {
		run := c.made()
		state, generation := b.State(run)
		if _, err := b.resumeCancelled(run); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v; want %q", err, c.says)
		}
		b.WantState(run, state, generation)
	}
}
