package collector_test

import (
	"fmt"
	"testing"

	"github.com/tranchehq/tranche/workqueue/collector"
)

// Keys that fail whenever they are tried are always due before one that was added later. It goes first anyway.
func TestKeysThatFailDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	for i := range 4 {
		c.add(fmt.Sprint("bad", i), fmt.Sprint("a", i), fmt.Sprint("b", i))
	}
	for range 4 {
		c.wait()
		for _, f := range c.claimAll() {
			c.fail(f, retried("bad_reply"))
		}
	}
	c.add("good", "x", "y")
	c.Exec(`UPDATE collector SET backoff_until = NULL`)
	c.Exec(`UPDATE collector_key SET held_until = NULL, due_at = oldest_at`)
	c.record(c.one("x", "y"), nil)
	c.Exec(`UPDATE collector_key SET held_until = NULL, due_at = oldest_at`)
	if flushes := c.claimAll(); len(flushes) != 4 {
		t.Errorf("%d flushes once one has come through, want those of all four keys", len(flushes))
	}
}

// A flush of an older key version is waited for also when its operations are dropped in progress.
func TestDroppedOperationsUnderWayAreWaitedFor(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	c.add("old", "x", "y")
	f := c.one("x", "y")
	spec := gatherOps()
	spec.OrderBy = &collector.OpKeying{Field: "n"}
	c.apply(spec)
	c.add("1", "u", "v")
	if n, err := collector.New(c.Store).DropOps(t.Context(), "c", collector.OpsSelection{All: true, Waiting: true,
		Keys: []string{"old"}},
		"ann"); err != nil || n != 2 {
		t.Fatalf("dropped %d, %v", n, err)
	}
	for range 2 {
		c.none("x and y are at work under their old key")
	}
	c.record(f, nil)
	c.one("u", "v")
}
