package workqueue_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/doctor"
)

// withCanary is a run of n items with a canary of ten.
func (b *bench) withCanary(n int, auto bool, maxFailed string) workqueue.RunID {
	b.Helper()
	req := storetest.Request()
	req.Canary, req.CanaryAutoApprove, req.MaxFailed = 10, auto, maxFailed
	return b.Load(req, n)
}

func (b *bench) wantCanary(run workqueue.RunID, want control.CanaryVerdict) {
	b.Helper()
	testenv.Same(b, testenv.Must(control.New(b.Store).CheckCanary(b.Context(), run))(b), want,
		"the verdict on the sample: %s", b.Dump(run))
}

func (b *bench) held(run workqueue.RunID) int {
	b.Helper()
	return b.Number(`SELECT coalesce(sum(bit_count(held)), 0) FROM work_block WHERE run_id = $1`, run)
}

func TestCanaryWaitsForApproval(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.withCanary(9000, false, "")
	testenv.Same(t, b.held(run), 8990, "items are held back")
	b.Check()
	_, err := control.New(b.Store).Approve(t.Context(), storetest.Wish(run, ""))
	b.WantRefused(err, "still running its canary")
	b.PauseRun(run) // so that its sample does not end
	_, err = control.New(b.Store).Approve(t.Context(), storetest.Wish(run, ""))
	b.WantRefused(err, "resume it first with tranche run resume")
	b.resume(run)
	out := b.Claim(run, storetest.Plenty)
	testenv.MustSame(t, b.Disjoint(out), 10, "items of the sample were claimed")
	b.wantCanary(run, control.CanaryUndecided)
	for i, s := range out {
		if i == 0 {
			b.Record(storetest.Faulty(s, workqueue.SlotError{Code: "bad", Message: "m"}))
			continue
		}
		b.Record(storetest.Whole(s))
	}
	failed := len(storetest.Ordinals(out[0]))
	due, err := control.New(b.Store).DueHolds(t.Context())
	if err != nil || len(due) != 1 || due[0] != (control.DueHold{Run: run, Canary: true}) {
		t.Errorf("due: %+v, %v", due, err)
	}
	b.wantCanary(run, control.CanaryWaiting)
	b.wantCanary(run, control.CanaryUndecided)
	b.wantHold(run, fmt.Sprintf("canary by tranche: its canary ended: %d of 10 items failed", failed))
	b.Check()
	_, err = control.New(b.Store).Resume(t.Context(), storetest.Wish(run, ""), nil)
	b.WantRefused(err, "tranche run approve "+run.String())
	_, err = control.New(b.Store).Pause(t.Context(), storetest.Wish(run, ""))
	b.WantRefused(err, "paused already")
	b.cancelRun(run)
	resumed := testenv.Must(control.New(b.Store).Resume(t.Context(), storetest.Wish(run, ""), new("5%")))(t)
	testenv.Same(t, resumed.Paused, fmt.Sprintf("its canary ended: %d of 10 items failed", failed), "it waits again")
	testenv.Same(t, b.Number(`SELECT failed_limit FROM batchrun WHERE id = $1`, run), 450, "failures that it may have")
	testenv.Advance(t, b.Pool, time.Second)
	approved, err := control.New(b.Store).Approve(t.Context(), storetest.Wish(run, "good enough"))
	if err != nil || approved.Items != 8990 || !slices.Equal(approved.Runs, []workqueue.RunID{run}) {
		t.Errorf("approved %+v, %v", approved, err)
	}
	b.wantHold(run, "")
	b.WantTally(run, storetest.Tally{Ready: 8990, Done: 10 - failed, Failed: failed})
	b.Check()
	_, err = control.New(b.Store).Approve(t.Context(), storetest.Wish(run, ""))
	b.WantRefused(err, "not waiting for approval")
	b.Exec(`UPDATE run_step SET chunk = 500 WHERE run_id = $1`, run)
	b.Finish(run)
	b.WantState(run, "completed", 2)
	testenv.SameList(t, b.Events(run), []string{"started", "paused", "resumed", "paused", "cancelled", "resumed",
		"approved", "completed"}, "events")
	testenv.Same(t, b.Report(run).Generations[1].PausedSeconds >= 1, true, "it was paused until it was approved")
	b.Check()
}

func TestCanaryGoesOnByItself(t *testing.T) {
	t.Parallel()
	bad := workqueue.SlotError{Code: "bad", Message: "m"}
	cases := []struct {
		name, maxFailed string
		failures        int
		want            control.CanaryVerdict
	}{
		{"no failure and no threshold", "", 0, control.CanaryPassed},
		{"a failure and no threshold", "", 1, control.CanaryWaiting},
		{"as many as may", "10%", 1, control.CanaryPassed},
		{"one more", "10%", 2, control.CanaryWaiting},
	}
	for _, c := range cases {
		subtest(t, c.name, func(b *bench) {
			run := b.withCanary(100, true, c.maxFailed)
			for _, s := range b.Claim(run, storetest.Plenty) {
				a := storetest.Whole(s)
				for i := range a.Slots {
					if c.failures > 0 {
						a.Slots[i].Result, a.Slots[i].Err = nil, &bad
						c.failures--
					}
				}
				b.Record(a)
			}
			b.wantCanary(run, c.want)
			audited := b.Number(`SELECT count(*) FROM audit_log WHERE run_id = $1 AND action = 'approve' AND actor = 'tranche'
				AND before::text LIKE '%"sampling"%' AND after::text LIKE '%"passed"%'`, run) == 1
			if passed := b.held(run) == 0; audited != passed || passed != (c.want == control.CanaryPassed) {
				b.Errorf("items are held back: %v; the audit log says that it passed: %v", !passed, audited)
			}
			b.Check()
		})
	}
}

func TestDoctorSeesWhatACanaryHolds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.withCanary(100, false, "")
	b.Check()
	b.Exec(`UPDATE batchrun SET canary_state = 'passed' WHERE id = $1`, run)
	report := testenv.Must(doctor.New(b.Store).Doctor(t.Context()))(t)
	testenv.Same(t, report.Found, 1, "held without a canary: %+v", report.Violations)
	b.Exec(`UPDATE batchrun SET canary_state = 'sampling' WHERE id = $1`, run)
	b.Exec(`UPDATE work_block SET held = NULL WHERE run_id = $1`, run)
	report = testenv.Must(doctor.New(b.Store).Doctor(t.Context()))(t)
	if report.Found != 1 || report.Violations[0].Count != 90 {
		t.Errorf("items that no one holds: %+v", report.Violations)
	}
}

// A canary takes one of each ⌈items/n⌉ items of the run, not always the same one, and holds the others back.
func TestCanarySampleIsSpread(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct{ items, canary, sample, stride int }{
		{20_000, 100, 100, 200}, {20_000, 1, 1, 20_000}, {20_000, 3, 3, 6667}, {1000, 999, 500, 2}, {16_385, 2, 2, 8193},
		{7, 3, 3, 3},
	} {
		req := storetest.Chunked(500)
		req.Canary, req.MaxFailed = c.canary, "10%"
		run := b.Load(req, c.items)
		claimed := b.Claim(run, storetest.Plenty)
		testenv.Same(t, b.Disjoint(claimed), c.sample, "items of a canary of %d of %d", c.canary, c.items)
		seen, places := map[int]bool{}, map[int]bool{}
		for _, s := range claimed {
			for _, o := range storetest.Ordinals(s) {
				if stretch := int(o) / c.stride; seen[stretch] {
					t.Errorf("two items of stretch %d are in a sample of one of each %d", stretch, c.stride)
				}
				seen[int(o)/c.stride] = true
				places[int(o)%c.stride] = true
			}
		}
		if c.sample >= 100 && c.stride >= 100 && len(places) < c.sample/3 {
			t.Errorf("the sample takes %d places of a stretch of %d: what repeats goes unseen", len(places), c.stride)
		}
		testenv.Same(t, b.Number(`SELECT sum(bit_count(held)) FROM work_block WHERE run_id = $1`, run), c.items-c.sample,
			"items are held back")
		testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun WHERE id = $1 AND canary_state = 'sampling'
			AND failed_limit = $2`, run, c.items/10), 1, "runs that are sampling, with how many may fail")
		b.Check()
	}
}

func TestCanaryOfAllItemsIsNone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, canary := range []int{0, 10, 11} {
		req := storetest.Chunked(4)
		req.Canary = canary
		run := b.Load(req, 10)
		b.WantTally(run, storetest.Tally{Ready: 10})
		testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun r JOIN work_block b ON b.run_id = r.id WHERE r.id = $1
			AND canary_state IS NULL AND failed_limit IS NULL AND held IS NULL`, run), 1, "canary of %d of 10", canary)
	}
	b.Check()
}
