package workqueue_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/doctor"
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

func (b *bench) approveSend(run workqueue.RunID, actor string, eyes ...string) (control.Controlled, error) {
	return control.New(b.Store).Approve(b.Context(),
		control.Control{Run: run, Actor: actor, Reason: "looks good", Step: "send", Eyes: eyes})
}

func TestFourEyes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Planned(storetest.Need("compose"), gate(workqueue.ApproveOther, storetest.Need("send", 0))),
		10)
	b.RecordStep(run, 0)
	b.checkBarriers(run)
	var eyes *control.FourEyesError
	_, err := b.approveSend(run, "Test")
	testenv.Same(t, testenv.As[*control.FourEyesError](t, err, "who started it approves").Act.Actor, "test", "who did")
	b.ApplySchedule("night", `{}`) // ann wrote it, and eve had it started immediately
	b.Exec(`INSERT INTO schedule_occurrence (schedule, due_at, kind, version, state, asked_by, start_at, run_id, ended_at)
		VALUES ('night', tranche_now(), 'now', 1, 'started', 'eve', tranche_now(), $1, tranche_now())`, run)
	for actor, action := range map[string]string{"eve": "start", "ann": "schedule"} {
		_, err := b.approveSend(run, "token", actor) // which they made
		if !errors.As(err, &eyes) || eyes.Act.Actor != actor || eyes.Act.Action != action {
			t.Errorf("%s approves: %v", actor, err)
		}
	}
	testenv.Must(b.approveSend(run, "bob"))(t)
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
	testenv.Says(t, err, "run_step_approved", "passed by hand")
	b.PauseRun(run)
	testenv.Must(b.approveSend(run, "ann"))(t)
	testenv.Advance(t, b.Pool, time.Second)
	b.resume(run)
	testenv.Same(t, b.Report(run).PausedSeconds >= 1, true, "the pause went on after the approval")
	b.ClaimStep(run, 1, 1)
	b.Check()
	b.Exec(`UPDATE run_step SET approved_at = approved_at + interval '1 hour' WHERE run_id = $1 AND step = 1`, run)
	report := testenv.Must(doctor.New(b.Store).Doctor(t.Context()))(t)
	if len(report.Violations) != 1 || report.Violations[0].Invariant != doctor.Approved {
		t.Errorf("a request before the approval: %v", report.Violations)
	}
}
