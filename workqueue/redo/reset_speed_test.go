package redo_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// How long resets of a million items take, of four steps: TRANCHE_RESET_ITEMS=1000000 go test -run TestResetIsFast -v.
func TestResetIsFast(t *testing.T) {
	t.Parallel()
	items := 20_000
	if _, err := fmt.Sscan(os.Getenv("TRANCHE_RESET_ITEMS"), &items); err != nil {
		items = 20_000
	}
	g := gather(t, items)
	// As after a whole run, without the work: every step is done, the tracker and the run are complete.
	g.Exec(`UPDATE work_block SET ready = B'0'::bit(8192), done = ~(~B'0'::bit(8192) >> size) WHERE run_id = $1`, g.run)
	g.Exec(`UPDATE tracker_group SET pending = B'0'::bit(8192) WHERE batch_id = $1`, g.run)
	g.Exec(`UPDATE tracker_batch SET open_groups = 0, state = 'completed', completed_at = tranche_now()
		WHERE id = $1`, g.run)
	g.Exec(`UPDATE batchrun SET state = 'completed', finished_at = tranche_now(), done = items, failed = 0
		WHERE id = $1`, g.run)
	g.Exec(`ANALYZE`)
	var scattered []string
	for i := range 1000 {
		scattered = append(scattered, fmt.Sprintf("C%d", i*(items/1000)))
	}
	measure := func(name string, want int64, step workqueue.Step, change func(*redo.ResetRequest)) {
		t.Helper()
		begun := time.Now()
		out, err := g.tryReset(step, change)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s for %d items in %d blocks", name, time.Since(begun).Round(time.Millisecond), out.Items, out.Blocks)
		if out.Items != want {
			t.Errorf("%s: %d items; want %d", name, out.Items, want)
		}
	}
	measure("scattered keys, tried", 1000, storetest.Transactions, func(r *redo.ResetRequest) {
		r.Select.Keys, r.DryRun = scattered, true
	})
	measure("scattered keys", 1000, storetest.Transactions, byKey(scattered...))
	measure("scattered keys, with all that follows", 1000, storetest.Accounts, func(r *redo.ResetRequest) {
		r.Select.Keys, r.Cascade = scattered, true
	})
	measure("all items of the last step", int64(items)-1000, storetest.Posting, all) // the others wait already
	measure("all items", int64(items), storetest.Branches, all)
}
