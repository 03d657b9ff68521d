package retention_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
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
		"it is completed for less than 1m0s; answers about it may still come, and schedules check how it ended; " +
			"try again in ": func() workqueue.RunID { return b.Ended(9, 0) },
		"an event about it is not published yet": ended(`UPDATE run_event SET published_at = NULL WHERE run_id = $1`),
		"; delete that one first: tranche run delete ": func() workqueue.RunID {
			run := b.Ended(9, time.Hour)
			b.Exec(`UPDATE batchrun SET from_run = $1 WHERE id = $2`, run, b.Ended(9, time.Hour))
			return run
		},
		"it is an abandoned load": ended(`UPDATE batchrun SET state = 'cancelled', sealed_at = NULL WHERE id = $1`),
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
			testenv.Says(t, testenv.As[*workqueue.StateError](t, err, "%q", says), says, "the refusal")
		}
		testenv.Same(t, fmt.Sprint(b.inTables(run)), fmt.Sprint(before), "%q: rows of the run", says)
	}
	_, err := b.deleteByHand(workqueue.NewRunID(), false)
	testenv.Is(t, err, workqueue.ErrNotFound, "a run that never")
}

// A load of more than a batch goes where no one is, and the others together.
func TestALargeLoadHasAPartitionForItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	taken := map[int]bool{}
	for range 2 {
		run := b.Load(storetest.Request(), 33_000)
		p := run.Partition()
		if n := b.Number(fmt.Sprintf(`SELECT count(*) FROM work_queue_%02d`, p)); p == 0 || taken[p] || n != 33_000 {
			t.Errorf("a large run is in partition %d, which has %d items; taken are %v", p, n, taken)
		}
		taken[p] = true
	}
	testenv.Same(t, b.Load(storetest.Request(), 9).Partition(), 0, "a small run is in partition")
}

// A partition is emptied when all in it is of runs that are being deleted, and else left as it is: by the role that
// serves, and while others are at work.
func TestAPartitionIsEmptiedWhenNobodyElseIsInIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	run, other := b.Ended(30, time.Hour), b.Ended(30, time.Hour)
	had, others := b.inTables(run), b.inTables(other)
	if had["work_result"] == 0 || had["work_queue"] == 0 {
		t.Fatal(had)
	}
	empty := func(want retention.Emptying, why string) {
		t.Helper()
		testenv.Same(t, testenv.Must(retention.New(b.Store).Empty(t.Context(), lease, run))(t), want, "%s", why)
	}
	goes := func(run workqueue.RunID, items int) {
		t.Helper()
		if !b.deleteRun(lease, run) {
			t.Fatal("it was not deleted")
		}
		b.Exec(`UPDATE deleted_run SET items = $2 WHERE run_id = $1`, run, items)
	}
	while := func(want retention.Emptying, why, statement string, args ...any) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), statement, args...); err != nil {
				return err
			}
			empty(want, why)
			return tx.Rollback(t.Context())
		})
		if err != nil && err != pgx.ErrTxClosed { //nolint:errorlint // BeginFunc returns it as it is
			t.Fatal(err)
		}
	}

	empty(retention.Emptying{}, "a run that no one deletes")
	goes(run, 1_000_000)
	empty(retention.Emptying{}, "beside a run that is kept")
	testenv.Same(t, fmt.Sprint(b.inTables(other)), fmt.Sprint(others), "rows of the other run")
	goes(other, 30)
	b.Exec(`UPDATE deleted_run SET items = 30 WHERE run_id = $1`, run)
	empty(retention.Emptying{}, "a small run")
	b.Exec(`UPDATE deleted_run SET items = 1000000 WHERE run_id = $1`, run)
	// The tables are new when it is found that the lease cannot be held: nothing has happened, as after a kill -9.
	while(retention.Emptying{Busy: true}, "interrupted before the commit", `SELECT FROM leader FOR UPDATE`)
	if now := b.inTables(run); now["work_result"] != had["work_result"] || now["work_queue"] != had["work_queue"] {
		t.Errorf("of a run whose partition was not emptied there was %v and is %v", had, now)
	}
	while(retention.Emptying{Emptied: 1, Busy: true}, "while someone writes an item",
		`INSERT INTO work_queue VALUES ($1, 0, 0, 'k', '{}')`, workqueue.NewRunID())
	while(retention.Emptying{Busy: true}, "while someone reads items", `SELECT FROM work_queue WHERE run_id = $1`, other)
	empty(retention.Emptying{Emptied: 1}, "at last")
	empty(retention.Emptying{}, "again")
	running := b.Load(storetest.Request(), 9)
	for _, gone := range []workqueue.RunID{run, other} {
		now := b.inTables(gone)
		if now["work_result"]+now["work_queue"] > 0 || now["work_slice"] == 0 {
			t.Errorf("of a run whose partitions were emptied there is %v", now)
		}
		b.Check()
		for over := false; !over; {
			var err error
			_, over, err = retention.New(b.Store).DeletePiece(t.Context(), lease, gone, 7)
			testenv.NoError(t, err)
		}
		left := b.inTables(gone)
		delete(left, "audit_log")
		delete(left, "deleted_run")
		testenv.Same(t, len(left), 0, "tables that have rows: %v", left)
	}
	testenv.Same(t, b.inTables(running)["work_queue"], 9, "items of the run in progress")
	b.Check()
}

// Where an id leads is PostgreSQL's to say.
func TestTheIDChoosesThePartition(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	ids, want := make([]workqueue.RunID, 0, 40*workqueue.Partitions), []int{}
	last := workqueue.NewRunID()
	for n := range cap(ids) {
		id, partition := workqueue.NewRunIDIn(n%workqueue.Partitions), n%workqueue.Partitions
		if string(id[:8]) < string(last[:8]) || uuid.UUID(id).Version() != 7 || uuid.UUID(id).Variant() != uuid.RFC4122 {
			t.Fatalf("%s comes after %s", id, last)
		}
		ids, want, last = append(ids, id), append(want, partition), id
	}
	for range 1000 { // of any kind
		id := workqueue.RunID(uuid.New())
		ids, want = append(ids, id), append(want, id.Partition())
	}
	for _, table := range []string{"work_queue", "work_result"} {
		wrong := testenv.Number(t, pool, `SELECT count(*) FROM unnest($1::uuid[], $2::int[]) u (id, partition)
			WHERE NOT satisfies_hash_partition($3::text::regclass, $4, partition, id)`, ids, want, table, workqueue.Partitions)
		testenv.Same(t, wrong, 0, "of %d ids lead to another partition of %s", len(ids), table)
	}
	testenv.Same(t, workqueue.NewRunID().Partition(), 0, "a run that says nothing is in partition")
}
