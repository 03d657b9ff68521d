package retention_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/retention"
)

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
	if p := b.Load(storetest.Request(), 9).Partition(); p != 0 {
		t.Errorf("a small run is in partition %d", p)
	}
}

// A partition is emptied when all in it is of runs that are being deleted, and else left as it is: by the role that
// serves, and while others are at work.
func TestAPartitionIsEmptiedWhenNobodyElseIsInIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, partition := range []string{"work_result_00", "work_queue_00"} { // else autovacuum may be at work in it
		b.Exec(`ALTER TABLE ` + partition + ` SET (autovacuum_enabled = off)`)
	}
	lease := b.Lead()
	run, other := b.Ended(30, time.Hour), b.Ended(30, time.Hour)
	had, others := b.inTables(run), b.inTables(other)
	if had["work_result"] == 0 || had["work_queue"] == 0 {
		t.Fatal(had)
	}
	empty := func(want retention.Emptying, why string) {
		t.Helper()
		out, err := retention.New(b.Store).Empty(t.Context(), lease, run)
		if err != nil || out != want {
			t.Errorf("%s: %+v, %v; want %+v", why, out, err, want)
		}
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
	if after := b.inTables(other); fmt.Sprint(after) != fmt.Sprint(others) {
		t.Errorf("of the other run there was %v and is %v", others, after)
	}
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
			if _, over, err = retention.New(b.Store).DeletePiece(t.Context(), lease, gone, 7); err != nil {
				t.Fatal(err)
			}
		}
		left := b.inTables(gone)
		delete(left, "audit_log")
		delete(left, "deleted_run")
		if len(left) > 0 {
			t.Errorf("there is left: %v", left)
		}
	}
	if n := b.inTables(running)["work_queue"]; n != 9 {
		t.Errorf("the run in progress has %d items", n)
	}
	b.Check()
}
