package workqueue_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// need is a step that needs others and sees their parts.
func need(name string, needs ...int) workqueue.StepSpec {
	return workqueue.StepSpec{Name: name, Endpoint: endpoint, Chunk: 4, InFlight: 100, MaxAttempts: 1,
		Timeout: time.Minute, Needs: needs, Inputs: needs}
}

// optional makes it a step without which those that need it go on.
func optional(s workqueue.StepSpec) workqueue.StepSpec {
	s.Optional = true
	return s
}

func barrier(s workqueue.StepSpec) workqueue.StepSpec {
	s.Barrier = true
	return s
}

func planned(steps ...workqueue.StepSpec) workqueue.LoadRequest {
	return workqueue.LoadRequest{Plan: "test", CreatedBy: "test", Steps: steps}
}

func (b *bench) claimStep(run workqueue.RunID, step workqueue.Step, most int) workqueue.Claimed {
	b.Helper()
	req := b.claimRequest(run, most)
	req.Step = step
	claimed, err := b.store.Claim(b.Context(), req)
	if err != nil {
		b.Fatal(err)
	}
	return claimed
}

// recordStep claims all there is of a step and answers it, with errors for the items that fail. It returns how many
// items that were.
func (b *bench) recordStep(run workqueue.RunID, step workqueue.Step, fail ...workqueue.Ordinal) (items int) {
	b.Helper()
	for {
		claimed := b.claimStep(run, step, plenty).Slices
		if len(claimed) == 0 {
			return items
		}
		var answers []workqueue.Answer
		for _, s := range claimed {
			items += s.Mask.Count()
			answers = append(answers, except(whole(s), fail...))
		}
		b.record(answers...)
	}
}

// except makes slots of some items errors that are final.
func except(a workqueue.Answer, items ...workqueue.Ordinal) workqueue.Answer {
	for i := range a.Slots {
		for _, o := range items {
			if a.Slots[i].Ordinal == o {
				a.Slots[i].Result, a.Slots[i].Err = nil, &workqueue.SlotError{Code: "bad", Message: "no"}
			}
		}
	}
	return a
}

// stepTally is where the items of a step are.
type stepTally struct{ ready, flying, done, failed, skipped, waiting int }

func (b *bench) stepAt(run workqueue.RunID, step workqueue.Step) (n stepTally) {
	b.Helper()
	err := b.pool.QueryRow(b.Context(), `
		SELECT sum(bit_count(ready)), sum(bit_count(done)), sum(bit_count(failed)),
		       coalesce(sum(bit_count(skipped)), 0), sum(size),
		       (SELECT coalesce(sum(bit_count(remaining)), 0) FROM work_slice
		        WHERE run_id = $1 AND step = $2 AND state IN ('scheduled', 'claimed', 'sent'))
		FROM work_block WHERE run_id = $1 AND step = $2`, run, step).
		Scan(&n.ready, &n.done, &n.failed, &n.skipped, &n.waiting, &n.flying)
	if err != nil {
		b.Fatal(err)
	}
	n.waiting -= n.ready + n.done + n.failed + n.skipped + n.flying
	return n
}

func (b *bench) wantAt(run workqueue.RunID, step workqueue.Step, want stepTally) {
	b.Helper()
	if got := b.stepAt(run, step); got != want {
		b.Errorf("step %d has %+v; want %+v: %s", step, got, want, b.dump(run))
	}
}

// counts returns how many items a run says were done and failed.
func (b *bench) wantCounts(run workqueue.RunID, done, failed int64) {
	b.Helper()
	var d, f int64
	if err := b.pool.QueryRow(b.Context(), `SELECT coalesce(done, -1), coalesce(failed, -1) FROM batchrun WHERE id = $1`,
		run).Scan(&d, &f); err != nil {
		b.Fatal(err)
	}
	if d != done || f != failed {
		b.Errorf("the run has %d items done and %d failed; want %d and %d", d, f, done, failed)
	}
}

func TestDiamond(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(planned(need("top"), need("left", 0), need("right", 0), need("bottom", 1, 2)), 10)
	for step := range workqueue.Step(3) {
		b.wantAt(run, step+1, stepTally{waiting: 10})
	}
	first := b.claimStep(run, 0, 1).Slices[0] // of chunks of 4, 3 and 3
	b.record(except(whole(first), 1))
	b.wantAt(run, 1, stepTally{ready: 3, skipped: 1, waiting: 6})
	b.recordStep(run, 0)
	b.wantAt(run, 1, stepTally{ready: 9, skipped: 1})
	b.wantAt(run, 2, stepTally{ready: 9, skipped: 1})
	b.wantAt(run, 3, stepTally{waiting: 9, skipped: 1})
	b.recordStep(run, 1, 5)
	b.wantAt(run, 3, stepTally{waiting: 8, skipped: 2})
	b.wantState(run, "running", 1)
	if n := b.recordStep(run, 2, 6); n != 9 {
		t.Errorf("the right side did %d items; want 9: its sibling's failure is not its own", n)
	}
	b.wantAt(run, 3, stepTally{ready: 7, skipped: 3})
	work := b.claimStep(run, 3, 1)
	if got := work.Work.Inputs; len(got) != 2 || got[0].Name != "left" || got[1].Name != "right" || got[1].Step != 2 {
		t.Errorf("the bottom sees %+v", got)
	}
	b.record(whole(work.Slices[0]))
	b.recordStep(run, 3)
	b.wantState(run, "completed", 1)
	b.wantCounts(run, 7, 3)
	b.wantCompletions(run, 1)
	b.check()
}
