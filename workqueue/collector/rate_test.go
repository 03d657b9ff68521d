package collector_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/collector"
)

// Nodes look late, always: by a fifth of the time between calls here, and once by much more. Calls come to what the
// rate allows anyway, and no minute has more than one call beyond it.
func TestLateLooksDoNotCostCalls(t *testing.T) {
	t.Parallel()
	const calls, late, idle = 25, 1200 * time.Millisecond, 2 * time.Minute
	spec := gatherOps()
	spec.Rate, spec.MinSize = "10/m", 1
	c := collect(t, spec)
	ops := make([]collector.Op, calls)
	for i := range ops {
		ops[i] = collector.Op{ID: fmt.Sprint("a", i), Key: fmt.Sprint("k", i)}
	}
	c.addOps(ops...)
	var moved time.Duration
	idled := false
	var begun time.Time
	var at []time.Duration
	for len(at) < calls {
		claimed := testenv.Must(collector.New(c.Store).ClaimFlushes(t.Context(), collector.FlushRequest{Session: c.Session,
			Collector: c.id, Max: 10}))(t)
		for _, f := range claimed.Flushes { // by the clock of the database, as rates are
			if begun.IsZero() {
				begun = f.Claimed
			}
			at = append(at, f.Claimed.Sub(begun))
		}
		if len(claimed.Flushes) == 0 {
			step := claimed.Wait + late
			if !idled && len(at) == 5 {
				idled, step = true, step+idle
			}
			testenv.Advance(c, c.Pool, step)
			moved += step
		}
	}
	for i := range at {
		n := 0
		for n+i < calls && at[n+i]-at[i] < time.Minute {
			n++
		}
		if n > 11 {
			t.Errorf("%d calls in a minute from %s", n, at[i])
		}
	}
	// The time in which the test itself was held up is none that calls took.
	if most := idle + calls*6250*time.Millisecond; moved > most {
		t.Errorf("%d calls took %s, which is less than 9.6 a minute", calls, moved)
	}
}

// Of a fast rate a tenth of a second's worth passes immediately, however long no one called.
func TestABurstOfCallsIsSmall(t *testing.T) {
	t.Parallel()
	spec := gatherOps()
	spec.Rate, spec.MinSize = "100/s", 1
	c := collect(t, spec)
	for i := range 30 {
		c.add(fmt.Sprint("k", i), fmt.Sprint("a", i))
	}
	testenv.Same(t, len(c.claimAll()), 1, "calls at the start")
	testenv.Advance(c, c.Pool, time.Hour)
	testenv.Same(t, len(c.claimAll()), 10, "calls after an idle hour")
}
