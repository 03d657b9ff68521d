package workqueue_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// need is a step that needs others and sees their parts.
func need(name string, needs ...int) workqueue.StepSpec {
	return workqueue.StepSpec{Name: name, Endpoint: endpoint, StepSettings: workqueue.StepSettings{Chunk: 4, InFlight: 100,
		MaxAttempts: 1, Timeout: time.Minute}, Needs: needs, Inputs: needs}
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

func planned(steps ...workqueue.StepSpec) start.LoadRequest {
	return start.LoadRequest{Plan: "test", CreatedBy: "test", Steps: steps}
}

func (b *bench) claimStep(run workqueue.RunID, step workqueue.Step, most int) dispatch.Claimed {
	b.Helper()
	req := b.claimRequest(run, most)
	req.Step = step
	claimed, err := dispatch.New(b.store).Claim(b.Context(), req)
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
		var answers []settle.Answer
		for _, s := range claimed {
			items += s.Mask.Count()
			answers = append(answers, except(whole(s), fail...))
		}
		b.record(answers...)
	}
}

// except makes slots of some items errors that are final.
func except(a settle.Answer, items ...workqueue.Ordinal) settle.Answer {
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

func TestOptionalStep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(planned(need("logo"), optional(need("extra")), need("page", 0, 1)), 8)
	b.recordStep(run, 1, 2, 3)
	b.recordStep(run, 0, 3)
	b.wantAt(run, 2, stepTally{ready: 7, skipped: 1})
	b.recordStep(run, 2)
	b.wantState(run, "completed", 1)
	b.wantCounts(run, 7, 1) // item 2 went on without its extra; item 3 has failed once, for its logo
	b.check()
}

func TestBarrier(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(planned(need("fetch"), barrier(need("sum", 0))), 10)
	claimed := b.claimStep(run, 0, plenty).Slices
	looks := 0
	for i, s := range claimed {
		found, err := dispatch.New(b.store).RunnableSteps(t.Context(), dispatch.Search{})
		if err != nil || len(found.Steps) != 0 {
			t.Errorf("after %d chunks there is work for %+v, %v; want none: the barrier holds", i, found.Steps, err)
		}
		if got := b.claimStep(run, 1, plenty); len(got.Slices) > 0 {
			t.Fatalf("claimed %d slices behind the barrier", len(got.Slices))
		}
		if passed, err := dispatch.New(b.store).CheckBarriers(t.Context(), run); err != nil || len(passed) > 0 {
			t.Fatalf("the barrier passed %v, %v, after %d of %d chunks", passed, err, i, len(claimed))
		}
		looks += len(b.record(except(whole(s), 4)).Look.Barriers)
	}
	if looks != 1 {
		t.Errorf("%d recordings say that the barrier may pass; want the last one", looks)
	}
	waiting, err := dispatch.New(b.store).WaitingBarriers(t.Context())
	if err != nil || len(waiting) != 1 || waiting[0] != run {
		t.Errorf("%v wait, %v; want the run", waiting, err)
	}
	passed, err := dispatch.New(b.store).CheckBarriers(t.Context(), run)
	if err != nil || len(passed) != 1 || passed[0] != 1 {
		t.Fatalf("the barriers of %v passed, %v; want that of step 1", passed, err)
	}
	if again, err := dispatch.New(b.store).CheckBarriers(t.Context(), run); err != nil || len(again) > 0 {
		t.Errorf("it passed again: %v, %v", again, err)
	}
	b.check()
	b.recordStep(run, 1)
	b.wantState(run, "completed", 1)
	b.wantCounts(run, 9, 1)
	b.check()
}

// A sample comes to its end although a step waits for all items: the rest of them is held back.
func TestCanaryBeforeABarrier(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := planned(need("fetch"), need("more"), barrier(need("sum", 0)), need("page", 1))
	req.Canary, req.CanaryAuto, req.MaxFailed = 4, true, "1"
	run := b.load(req, 20)
	for _, step := range []workqueue.Step{0, 1, 3} {
		if n := b.recordStep(run, step); n != 4 {
			t.Errorf("step %d did %d items; want the sample's 4", step, n)
		}
	}
	if verdict, err := control.New(b.store).CheckCanary(t.Context(), run); err != nil || verdict != control.CanaryPassed {
		t.Fatalf("the canary: %q, %v", verdict, err)
	}
	b.check()
	for _, step := range []workqueue.Step{0, 1, 3} {
		b.recordStep(run, step)
	}
	if passed, err := dispatch.New(b.store).CheckBarriers(t.Context(), run); err != nil || len(passed) != 1 {
		t.Errorf("the barriers of %v passed, %v", passed, err)
	}
	b.recordStep(run, 2)
	b.wantState(run, "completed", 1)
	b.wantCounts(run, 20, 0)
	b.check()
}

// Failures count once against a run's limit, and those of optional steps not at all.
func TestThresholdOfSeveralSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := planned(need("a"), need("b"), optional(need("c")), need("d", 0, 1, 2))
	req.MaxFailed = "2"
	run := b.load(req, 10)
	b.recordStep(run, 0, 1, 2)
	b.recordStep(run, 1, 1, 2)
	b.recordStep(run, 2, 3, 4, 5)
	if held, err := control.New(b.store).CheckThreshold(t.Context(), run); held || err != nil {
		t.Errorf("held %v, %v; 2 items have failed of the 2 that may", held, err)
	}
	b.recordStep(run, 3, 6)
	b.wantState(run, "completed", 1)
	b.wantCounts(run, 7, 3)
	b.check()
}

func TestTwentySteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	steps := []workqueue.StepSpec{need("s0")}
	for s := 1; s < 20; s++ {
		steps = append(steps, need(fmt.Sprint("s", s), s-1))
	}
	run := b.load(planned(steps...), 24)
	for s := range workqueue.Step(20) {
		if n := b.recordStep(run, s, workqueue.Ordinal(s)); n != 24-int(s) {
			t.Errorf("step %d did %d items; want %d", s, n, 24-int(s))
		}
	}
	b.wantState(run, "completed", 1)
	b.wantCounts(run, 4, 20)
	b.check()
}

// TestRacingJoins has recorders settle three steps of the same blocks at once, and others work on what they unlock:
// thousands of items wait for whichever of their parts comes last, and end with whichever of two steps ends last. Every
// item is unlocked and acknowledged, and the run completes once.
func TestRacingJoins(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const items, recorders = 4000, 6
	steps := []workqueue.StepSpec{need("a"), need("b"), need("c"), need("join", 0, 1, 2), need("left", 3),
		need("right", 3)}
	for i := range steps {
		steps[i].Chunk, steps[i].InFlight = 70, 10_000
	}
	run := b.load(planned(steps...), items)
	var answers []settle.Answer
	for step := range workqueue.Step(3) {
		for _, s := range b.claimStep(run, step, plenty).Slices {
			answers = append(answers, except(whole(s), 17, 3500))
		}
	}
	rand.Shuffle(len(answers), func(i, j int) { answers[i], answers[j] = answers[j], answers[i] })
	queue := make(chan settle.Answer, len(answers))
	for _, a := range answers {
		queue <- a
	}
	close(queue)
	var all sync.WaitGroup
	var completions atomic.Int64
	record := func(batch ...settle.Answer) {
		out, err := settle.New(b.store).Record(t.Context(), batch)
		if err != nil {
			t.Error(err)
		}
		completions.Add(int64(len(out.Completed)))
	}
	limit := time.Now().Add(30 * time.Second) // for a run that never completes
	for range recorders {
		all.Go(func() {
			for a := range queue {
				batch := []settle.Answer{a}
				for n := rand.IntN(4); n > 0; n-- {
					if more, ok := <-queue; ok {
						batch = append(batch, more)
					}
				}
				record(batch...)
			}
		})
	}
	for step := range workqueue.Step(3) {
		all.Go(func() {
			req := b.claimRequest(run, 5)
			req.Step = 3 + step
			for completions.Load() == 0 && time.Now().Before(limit) {
				claimed, err := dispatch.New(b.store).Claim(t.Context(), req)
				if err != nil && !errors.Is(err, workqueue.ErrBusy) { // recorders may hold the only block for a while
					t.Error(err)
				}
				for _, s := range claimed.Slices {
					record(whole(s))
				}
			}
		})
	}
	all.Wait()
	if completions.Load() != 1 {
		t.Errorf("%d recordings completed the run; want 1", completions.Load())
	}
	b.wantState(run, "completed", 1)
	b.wantCounts(run, items-2, 2)
	b.wantAt(run, 5, stepTally{done: items - 2, skipped: 2})
	b.check()
}
