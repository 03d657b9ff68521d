package workqueue_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// gate is a step that waits for all items, and then for someone.
func gate(by string, s workqueue.StepSpec) workqueue.StepSpec {
	s.Barrier, s.Approval = true, by
	return s
}

// checkBarriers has gates begin to wait; none passes by itself.
func (b *bench) checkBarriers(run workqueue.RunID) {
	b.Helper()
	if passed, err := dispatch.New(b.Store).CheckBarriers(b.Context(), run); err != nil || len(passed) > 0 {
		b.Errorf("the barriers of %v passed, %v", passed, err)
	}
}

func (b *bench) approveSend(run workqueue.RunID, actor string) (control.Controlled, error) {
	return control.New(b.Store).Approve(b.Context(),
		control.Control{Run: run, Actor: actor, Reason: "looks good", Step: "send"})
}

func TestFourEyes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Planned(storetest.Need("compose"), gate(workqueue.ApproveOther, storetest.Need("send", 0))),
		10)
	b.RecordStep(run, 0)
	b.checkBarriers(run)
	var eyes *control.FourEyesError
	if _, err := b.approveSend(run, "test"); !errors.As(err, &eyes) || eyes.Act.Actor != "test" {
		t.Errorf("who started it approves: %v", err)
	}
	b.ApplySchedule("night", `{}`) // ann wrote it, and eve had it started at once
	b.Exec(`INSERT INTO schedule_occurrence (schedule, due_at, kind, version, state, asked_by, start_at, run_id, ended_at)
		VALUES ('night', tranche_now(), 'now', 1, 'started', 'eve', tranche_now(), $1, tranche_now())`, run)
	for actor, action := range map[string]string{"eve": "start", "ann": "schedule"} {
		_, err := b.approveSend(run, actor)
		if !errors.As(err, &eyes) || eyes.Act.Actor != actor || eyes.Act.Action != action {
			t.Errorf("%s approves: %v", actor, err)
		}
	}
	if _, err := b.approveSend(run, "bob"); err != nil {
		t.Error(err)
	}
}

// The schema itself lets no step begin that no one has approved, and the doctor sees what was asked for before.
func TestNothingPassesAGateUnseen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Planned(storetest.Need("compose"), gate(workqueue.ApproveAnyone, storetest.Need("send", 0))),
		10)
	b.RecordStep(run, 0)
	b.checkBarriers(run)
	_, err := b.Pool.Exec(t.Context(), `UPDATE run_step SET barrier_passed = true, gate_since = NULL
		WHERE run_id = $1 AND step = 1`, run)
	if err == nil || !strings.Contains(err.Error(), "run_step_approved") {
		t.Errorf("passed by hand: %v", err)
	}
	testenv.Must(b.approveSend(run, "ann"))(t)
	b.ClaimStep(run, 1, 1)
	b.Check()
	b.Exec(`UPDATE run_step SET approved_at = approved_at + interval '1 hour' WHERE run_id = $1 AND step = 1`, run)
	report := testenv.Must(doctor.New(b.Store).Doctor(t.Context()))(t)
	if len(report.Violations) != 1 || report.Violations[0].Invariant != doctor.Approved {
		t.Errorf("a request before the approval: %v", report.Violations)
	}
}

// TestRacingJoins has recorders settle three steps of the same blocks at once, and others work on what they unlock:
// many items wait for whichever of their parts comes last, and end with whichever of two steps ends last. Every
// item is unlocked and acknowledged, and the run completes once.
func TestRacingJoins(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const items, recorders = 1400, 6
	steps := []workqueue.StepSpec{storetest.Need("a"), storetest.Need("b"), storetest.Need("c"),
		storetest.Need("join", 0, 1, 2), storetest.Need("left", 3),
		storetest.Need("right", 3)}
	for i := range steps {
		steps[i].Chunk, steps[i].InFlight = 70, 10_000
	}
	run := b.Load(storetest.Planned(steps...), items)
	var answers []settle.Answer
	for step := range workqueue.Step(3) {
		for _, s := range b.ClaimStep(run, step, storetest.Plenty).Slices {
			answers = append(answers, storetest.Except(storetest.Whole(s), 17, 1300))
		}
	}
	rand.Shuffle(len(answers), func(i, j int) { answers[i], answers[j] = answers[j], answers[i] })
	var all sync.WaitGroup
	var completions atomic.Int64
	record := func(batch ...settle.Answer) {
		out, err := settle.New(b.Store).Record(t.Context(), batch)
		if err != nil {
			t.Error(err)
		}
		completions.Add(int64(len(out.Completed)))
	}
	for part := range slices.Chunk(answers, len(answers)/recorders+1) {
		all.Go(func() {
			for some := range slices.Chunk(part, 2) {
				record(some...)
			}
		})
	}
	limit := time.Now().Add(2 * time.Minute) // for a run that never completes
	for step := range workqueue.Step(3) {
		all.Go(func() {
			req := b.ClaimRequest(run, 5)
			req.Step = 3 + step
			for completions.Load() == 0 && time.Now().Before(limit) {
				claimed, err := dispatch.New(b.Store).Claim(t.Context(), req)
				if err != nil && !errors.Is(err, workqueue.ErrBusy) { // recorders may hold the only block for a while
					t.Error(err)
				}
				for _, s := range claimed.Slices {
					record(storetest.Whole(s))
				}
			}
		})
	}
	all.Wait()
	if completions.Load() != 1 {
		t.Errorf("%d recordings completed the run; want 1", completions.Load())
	}
	b.WantState(run, "completed", 1)
	b.WantCounts(run, items-2, 2)
	b.WantAt(run, 5, storetest.StepTally{Done: items - 2, Skipped: 2})
	b.Check()
}

// seenBy returns what a request of a step carries of item 0, as "-" for a part that is missing.
func (b *bench) seenBy(run workqueue.RunID, step workqueue.Step) (s workqueue.Slice, parts []string) {
	b.Helper()
	claimed := b.ClaimStep(run, step, 1)
	if len(claimed.Slices) != 1 {
		b.Fatalf("step %d has %d slices to claim; want 1: %s", step, len(claimed.Slices), b.Dump(run))
	}
	mask := bitfield.Of(0)
	testenv.NoError(b, dispatch.New(b.Store).EachInput(b.Context(), dispatch.InputRequest{Run: run, Mask: &mask,
		Inputs: claimed.Work.Inputs},
		func(in dispatch.Input) bool {
			for _, p := range in.Parts {
				data := "missing"
				if !p.Missing {
					data = string(p.Data)
				}
				parts = append(parts, data)
			}
			return true
		}))
	return claimed.Slices[0], parts
}

// A step that is left out this time has no part, whatever it had before; when the same part comes back, who went on
// without it sees it again.
func TestPartOfAStepThatIsLeftOut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Planned(storetest.Need("source"), storetest.Optional(storetest.Need("extra", 0)),
		storetest.Optional(storetest.Need("other")), storetest.Need("page", 1, 2)), 1)
	again := func(step string) {
		t.Helper()
		testenv.Must(redo.New(b.Store).Reset(t.Context(), redo.ResetRequest{Run: run, Actor: "test",
			Select: redo.Selection{Step: step, Keys: []string{"C0"}}}))(t)
	}
	want := func(extra string) {
		t.Helper()
		s, parts := b.seenBy(run, 3)
		if len(parts) != 2 || parts[0] != extra {
			t.Errorf("the page sees %q of the extra; want %q", parts, extra)
		}
		b.Record(storetest.Whole(s))
		b.Check()
	}
	for step := range workqueue.Step(3) {
		b.RecordStep(run, step)
	}
	want(`{"of":0}`)
	again("source")
	b.RecordStep(run, 0, 0) // fails: the extra is left out
	want("missing")
	again("source")
	b.RecordStep(run, 0)
	b.RecordStep(run, 1) // the same bytes as at first
	want(`{"of":0}`)
	again("source")
	b.RecordStep(run, 0)
	b.WantState(run, "completed", 4) // nothing has changed, so nothing was redone
	b.WantCompletions(run, 1, 2, 3, 4)
	b.Check()
}
