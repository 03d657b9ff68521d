package retention_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/retention"
)

func (b *bench) deleteByHand(run workqueue.RunID, dry bool) (retention.Deletion, error) {
	return retention.New(b.Store).DeleteByHand(b.Context(), retention.DeleteRequest{Run: run, DryRun: dry,
		Actor: "ann", Reason: "a rehearsal"})
}

// What is not finished, or has only just ended, is not deleted, nor what someone is at work on: neither by its limits
// nor by hand, which says why and what to do, also in a dry run. Nothing of it changes.
func TestARunThatIsNeededIsNotDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	cancelFirst := "tranche run cancel"
	ended := func(changes ...string) func() workqueue.RunID {
		return func() workqueue.RunID {
			run := b.Ended(9, 9*24*time.Hour)
			for _, sql := range changes {
				b.Exec(sql, run)
			}
			return run
		}
	}
	held := func(rows string) func() workqueue.RunID {
		return func() workqueue.RunID {
			run := b.Ended(9, time.Hour)
			t.Cleanup(b.HoldRows(rows, run))
			return run
		}
	}
	for says, made := range map[string]func() workqueue.RunID{
		"it is running; let it end, or end it first: " + cancelFirst: func() workqueue.RunID {
			return b.Load(storetest.Request(), 9)
		},
		"it is in progress, and paused; let it end": func() workqueue.RunID {
			run := b.Load(storetest.Request(), 9)
			b.PauseRun(run)
			return run
		},
		cancelFirst: func() workqueue.RunID { return b.OpenRun(nil) },
		"end it first: " + cancelFirst: func() workqueue.RunID {
			run := b.Ended(9, time.Hour)
			b.Rerun(run, redo.Selection{Keys: []string{"C1"}})
			return run
		},
		"it is completed for less than 1m0s; answers about it may still come, and schedules look how it ended; " +
			"try again in ": func() workqueue.RunID { return b.Ended(9, 0) },
		"an event about it is not published yet": ended(`UPDATE run_event SET published_at = NULL WHERE run_id = $1`),
		"; delete that one first: tranche run delete ": func() workqueue.RunID {
			run := b.Ended(9, time.Hour)
			b.Exec(`UPDATE batchrun SET from_run = $1 WHERE id = $2`, run, b.Ended(9, time.Hour))
			return run
		},
		"it is a load that was given up": ended(`UPDATE batchrun SET state = 'cancelled', sealed_at = NULL WHERE id = $1`),
		// A deletion by hand waits for it.
		"":  held(`SELECT FROM run_step WHERE run_id = $1 FOR NO KEY UPDATE`),
		" ": held(`SELECT FROM batchrun WHERE id = $1 FOR NO KEY UPDATE`),
	} {
		run := made()
		if strings.TrimSpace(says) != "" && !strings.Contains(says, "published") { // only its state keeps it
			b.Exec(`UPDATE run_event SET published_at = tranche_now() WHERE run_id = $1`, run)
		}
		before := b.inTables(run)
		if b.deleteRun(lease, run) {
			t.Errorf("%q: it was deleted", says)
		}
		for _, dry := range []bool{true, false} {
			if strings.TrimSpace(says) == "" {
				continue
			}
			_, err := b.deleteByHand(run, dry)
			if refused, ok := errors.AsType[*workqueue.StateError](err); !ok || !strings.Contains(refused.Error(), says) {
				t.Errorf("%v; want %q", err, says)
			}
		}
		if after := b.inTables(run); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%q: there was %v and is %v", says, before, after)
		}
	}
	if _, err := b.deleteByHand(workqueue.NewRunID(), false); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("a run that never was: %v", err)
	}
}
