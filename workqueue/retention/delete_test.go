package retention_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/retention"
	"github.com/tranchehq/tranche/workqueue/start"
)

func (b *bench) deleteByHand(run workqueue.RunID, dry bool) (retention.Deletion, error) {
	return retention.New(b.Store).DeleteByHand(b.Context(), retention.DeleteRequest{Run: run, DryRun: dry,
		Actor: "ann", Reason: "a rehearsal"})
}

// What someone deletes is foretold, goes as what is past its limits does, and it is known who wanted it.
func TestARunIsDeletedByHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	other, run := b.Ended(30, time.Hour), b.Ended(30, time.Hour)
	before, had := b.inTables(other), b.inTables(run)
	foretold, err := b.deleteByHand(run, true)
	if err != nil || foretold.Items != 30 || foretold.Steps != 1 || foretold.Letters != 1 || foretold.Waiting != 1 ||
		foretold.Quarantine != 1 || foretold.State != "completed" || foretold.Bytes < 5000 || foretold.Bytes > 50_000 {
		t.Errorf("a dry run says %+v, %v", foretold, err)
	}
	if after := b.inTables(run); fmt.Sprint(after) != fmt.Sprint(had) {
		t.Errorf("before a dry run there was %v, and is %v", had, after)
	}
	if done, err := b.deleteByHand(run, false); err != nil || done != foretold {
		t.Fatalf("%+v went, %v; foretold was %+v", done, err, foretold)
	}
	_, err = inspect.New(b.Store).Resolve(t.Context(), run.String())
	if gone, ok := errors.AsType[*inspect.GoneError](err); !ok || gone.Run.By != "ann" ||
		!strings.HasSuffix(err.Error(), " by ann: a rehearsal") {
		t.Errorf("a deleted run is told as %v", err)
	}
	if _, err := b.deleteByHand(run, false); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("it is deleted twice: %v", err)
	}
	b.Check()
	for gone := false; !gone; {
		if _, gone, err = retention.New(b.Store).DeletePiece(t.Context(), lease, run, 7); err != nil {
			t.Fatal(err)
		}
	}
	b.wantGone(run, "ann", other, before)
}

// What keeps a run says so, with what to do, also in a dry run; nothing of it changes.
func TestARunThatIsNeededIsNotDeletedByHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cancelFirst := "tranche run cancel"
	for _, c := range []struct {
		says string
		made func() workqueue.RunID
	}{
		{"it is running; let it end, or end it first: " + cancelFirst, func() workqueue.RunID {
			return b.Load(storetest.Request(), 9)
		}},
		{"it is in progress, and paused; let it end", func() workqueue.RunID {
			run := b.Load(storetest.Request(), 9)
			b.PauseRun(run)
			return run
		}},
		{cancelFirst, func() workqueue.RunID { return b.OpenRun(func(*start.OpenRequest) {}) }},
		{cancelFirst, func() workqueue.RunID {
			run := b.Ended(9, time.Hour)
			if _, err := redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Actor: "ann",
				Select: redo.Selection{Keys: []string{"C1"}}}); err != nil {
				t.Fatal(err)
			}
			return run
		}},
		{"it is completed for less than 1m0s; answers about it may still come, and schedules look how it ended; " +
			"try again in ", func() workqueue.RunID { return b.Ended(9, 0) }},
		{"an event about it is not published yet", func() workqueue.RunID {
			run := b.Ended(9, time.Hour)
			b.Exec(`UPDATE run_event SET published_at = NULL WHERE run_id = $1`, run)
			return run
		}},
		{"; delete that one first: tranche run delete ", func() workqueue.RunID {
			run := b.Ended(9, time.Hour)
			b.Exec(`UPDATE batchrun SET from_run = $1 WHERE id = $2`, run, b.Ended(9, time.Hour))
			return run
		}},
		{"it is a load that was given up", func() workqueue.RunID {
			run := b.Load(storetest.Request(), 9)
			b.Exec(`UPDATE batchrun SET state = 'cancelled', sealed_at = NULL WHERE id = $1`, run)
			return run
		}},
	} {
		run := c.made()
		before := b.inTables(run)
		for _, dry := range []bool{true, false} {
			_, err := b.deleteByHand(run, dry)
			if refused, ok := errors.AsType[*workqueue.StateError](err); !ok || !strings.Contains(refused.Error(), c.says) {
				t.Errorf("%v; want %q", err, c.says)
			}
		}
		if after := b.inTables(run); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: there was %v and is %v", c.says, before, after)
		}
	}
	if _, err := b.deleteByHand(workqueue.NewRunID(), false); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("a run that never was: %v", err)
	}
}
