package workqueue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// Nodes look late, always: by a quarter of a second here, and once by 20 s. Calls come to what the rate allows all the
// same, and no minute has more than one call beyond it.
func TestLateLooksDoNotCostCalls(t *testing.T) {
	t.Parallel()
	const calls, late, idle = 75, 250 * time.Millisecond, 20 * time.Second
	spec := gatherOps()
	spec.Rate, spec.MinSize = "50/m", 1
	c := collect(t, spec)
	ops := make([]workqueue.Op, calls)
	for i := range ops {
		ops[i] = workqueue.Op{ID: fmt.Sprint("a", i), Key: fmt.Sprint("k", i)}
	}
	c.addOps(ops...)
	var moved time.Duration
	idled := false
	begun := time.Now()
	var at []time.Duration
	for len(at) < calls {
		claimed, err := c.store.ClaimFlushes(t.Context(), workqueue.FlushRequest{Session: c.session, Collector: c.id, Max: 10})
		if err != nil {
			t.Fatal(err)
		}
		for range claimed.Flushes {
			at = append(at, moved+time.Since(begun))
		}
		if len(claimed.Flushes) == 0 {
			step := claimed.Wait + late
			if !idled && len(at) == 10 {
				idled, step = true, step+idle
			}
			c.exec(`UPDATE collector SET tokens_at = tokens_at - $1::interval`, step)
			moved += step
		}
	}
	for i := range at {
		n := 0
		for n+i < calls && at[n+i]-at[i] < time.Minute-late { // a call was noted somewhat later than it was made
			n++
		}
		if n > 51 {
			t.Errorf("%d calls in a minute from %s", n, at[i])
		}
	}
	if took, most := at[calls-1], idle+calls*time.Minute/48; took > most {
		t.Errorf("%d calls took %s, which is less than 48 a minute", calls, took)
	}
}
