package workqueue_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Steps of one run that go on side by side keep each to its own chunk, limit in flight, rate, attempts and retry codes.
func TestStepsKeepToTheirOwnSettings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	small, large, slow := storetest.Need("small"), storetest.Need("large"), storetest.Need("slow")
	small.Chunk, small.InFlight, small.NeverRetry = 2, 1, []string{"soft"}
	large.Chunk, large.InFlight, large.MaxAttempts, large.RetryBackoff = 5, 2, 3, time.Hour
	small.MaxAttempts, slow.Rate = 3, 0.01
	run := b.Load(storetest.Planned(small, large, slow), 20)
	for step, want := range map[workqueue.Step][]int{0: {2}, 1: {5, 5}, 2: {1}} {
		claimed := b.ClaimStep(run, step, storetest.Plenty).Slices
		var sizes []int
		var answers []settle.Answer
		for _, s := range claimed {
			sizes = append(sizes, s.Mask.Count())
			answers = append(answers, storetest.Faulty(s, workqueue.SlotError{Code: "soft", Retry: true}))
		}
		if len(sizes) != len(want) || sizes[0] != want[0] {
			t.Errorf("step %d is claimed in chunks of %v; want %v", step, sizes, want)
		}
		b.Record(answers...)
	}
	b.WantAt(run, 0, storetest.StepTally{Ready: 18, Failed: 2})  // never tried again
	b.WantAt(run, 1, storetest.StepTally{Ready: 10, Flying: 10}) // again in an hour
	b.WantAt(run, 2, storetest.StepTally{Ready: 19, Failed: 1})  // tried once
	b.ClaimStep(run, 2, storetest.Plenty)                        // whatever has come in, it is in debt then
	if more := b.ClaimStep(run, 2, storetest.Plenty).Slices; len(more) > 0 {
		t.Errorf("the slow step is claimed at once again: %d slices", len(more))
	}
	b.Check()
}
