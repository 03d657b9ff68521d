package workqueue_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

func TestBarrier(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Planned(storetest.Need("fetch"), storetest.Barrier(storetest.Need("sum", 0))), 10)
	claimed := b.ClaimStep(run, 0, storetest.Plenty).Slices
	looks := 0
	for i, s := range claimed {
		found, err := dispatch.New(b.Store).RunnableSteps(t.Context(), dispatch.Search{})
		if err != nil || len(found.Steps) != 0 {
			t.Errorf("after %d chunks there is work for %+v, %v; want none: the barrier holds", i, found.Steps, err)
		}
		if got := b.ClaimStep(run, 1, storetest.Plenty); len(got.Slices) > 0 {
			t.Fatalf("claimed %d slices behind the barrier", len(got.Slices))
		}
		if passed, err := dispatch.New(b.Store).CheckBarriers(t.Context(), run); err != nil || len(passed) > 0 {
			t.Fatalf("the barrier passed %v, %v, after %d of %d chunks", passed, err, i, len(claimed))
		}
		looks += len(b.Record(storetest.Except(storetest.Whole(s), 4)).Look.Barriers)
	}
	if looks != 1 {
		t.Errorf("%d recordings say that the barrier may pass; want the last one", looks)
	}
	waiting, err := dispatch.New(b.Store).WaitingBarriers(t.Context())
	if err != nil || len(waiting) != 1 || waiting[0] != run {
		t.Errorf("%v wait, %v; want the run", waiting, err)
	}
	passed, err := dispatch.New(b.Store).CheckBarriers(t.Context(), run)
	if err != nil || len(passed) != 1 || passed[0] != 1 {
		t.Fatalf("the barriers of %v passed, %v; want that of step 1", passed, err)
	}
	if again, err := dispatch.New(b.Store).CheckBarriers(t.Context(), run); err != nil || len(again) > 0 {
		t.Errorf("it passed again: %v, %v", again, err)
	}
	b.Check()
	b.RecordStep(run, 1)
	b.WantState(run, "completed", 1)
	b.WantCounts(run, 9, 1)
	b.Check()
}

// A sample comes to its end although a step waits for all items: the rest of them is held back.
func TestCanaryBeforeABarrier(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Planned(storetest.Need("fetch"), storetest.Need("more"), storetest.Barrier(storetest.Need("sum", 0)),
		storetest.Need("page", 1))
	req.Canary, req.CanaryAuto, req.MaxFailed = 4, true, "1"
	run := b.Load(req, 20)
	for _, step := range []workqueue.Step{0, 1, 3} {
		if n := b.RecordStep(run, step); n != 4 {
			t.Errorf("step %d did %d items; want the sample's 4", step, n)
		}
	}
	if verdict, err := control.New(b.Store).CheckCanary(t.Context(), run); err != nil || verdict != control.CanaryPassed {
		t.Fatalf("the canary: %q, %v", verdict, err)
	}
	b.Check()
	for _, step := range []workqueue.Step{0, 1, 3} {
		b.RecordStep(run, step)
	}
	if passed, err := dispatch.New(b.Store).CheckBarriers(t.Context(), run); err != nil || len(passed) != 1 {
		t.Errorf("the barriers of %v passed, %v", passed, err)
	}
	b.RecordStep(run, 2)
	b.WantState(run, "completed", 1)
	b.WantCounts(run, 20, 0)
	b.Check()
}

// Failures count once against a run's limit, and those of optional steps not at all.
func TestThresholdOfSeveralSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Planned(storetest.Need("a"), storetest.Need("b"), storetest.Optional(storetest.Need("c")),
		storetest.Need("d", 0, 1, 2))
	req.MaxFailed = "2"
	run := b.Load(req, 10)
	b.RecordStep(run, 0, 1, 2)
	b.RecordStep(run, 1, 1, 2)
	b.RecordStep(run, 2, 3, 4, 5)
	if held, err := control.New(b.Store).CheckThreshold(t.Context(), run); held || err != nil {
		t.Errorf("held %v, %v; 2 items have failed of the 2 that may", held, err)
	}
	b.RecordStep(run, 3, 6)
	b.WantState(run, "completed", 1)
	b.WantCounts(run, 7, 3)
	b.Check()
}
