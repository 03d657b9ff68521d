package workqueue_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Steps of one run that go on side by side keep each to its own chunk, limit in flight, rate, attempts and retry codes.
func TestStepsKeepToTheirOwnSettings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	small, large, slow := need("small"), need("large"), need("slow")
	small.Chunk, small.InFlight, small.NeverRetry = 2, 1, []string{"soft"}
	large.Chunk, large.InFlight, large.MaxAttempts, large.RetryBackoff = 5, 2, 3, time.Hour
	small.MaxAttempts, slow.Rate = 3, 0.01
	run := b.load(planned(small, large, slow), 20)
	for step, want := range map[workqueue.Step][]int{0: {2}, 1: {5, 5}, 2: {1}} {
		claimed := b.claimStep(run, step, plenty).Slices
		var sizes []int
		var answers []settle.Answer
		for _, s := range claimed {
			sizes = append(sizes, s.Mask.Count())
			answers = append(answers, faulty(s, workqueue.SlotError{Code: "soft", Retry: true}))
		}
		if len(sizes) != len(want) || sizes[0] != want[0] {
			t.Errorf("step %d is claimed in chunks of %v; want %v", step, sizes, want)
		}
		b.record(answers...)
	}
	b.wantAt(run, 0, stepTally{ready: 18, failed: 2})  // never tried again
	b.wantAt(run, 1, stepTally{ready: 10, flying: 10}) // again in an hour
	b.wantAt(run, 2, stepTally{ready: 19, failed: 1})  // tried once
	b.claimStep(run, 2, plenty)                        // whatever has come in, it is in debt then
	if more := b.claimStep(run, 2, plenty).Slices; len(more) > 0 {
		t.Errorf("the slow step is claimed at once again: %d slices", len(more))
	}
	b.check()
}
