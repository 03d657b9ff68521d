package retention

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// leastToEmpty is how many items a run has for which it is worth to give tables new files.
const leastToEmpty = 20_000

// A partition whose rows are all of runs that are being deleted is emptied, which leaves no dead rows and takes as long
// for ten million as for one. What is in it says so, and not what somebody believes of it: the runs are asked of its
// primary key, one probe for each, up to the first that is not being deleted. Until that is said again under the lock
// nobody has lost anything; what somebody has written and not committed keeps the lock from us. work_part_00
// stands for any partition.
const (
	partitionIsSpent = `
WITH RECURSIVE runs AS (
    (SELECT run_id FROM work_part_00 ORDER BY run_id LIMIT 1)
    UNION ALL
    SELECT (SELECT p.run_id FROM work_part_00 p WHERE p.run_id > runs.run_id ORDER BY p.run_id LIMIT 1)
    FROM runs WHERE runs.run_id IS NOT NULL)
SELECT NOT EXISTS (
        SELECT FROM runs WHERE run_id IS NOT NULL AND NOT EXISTS (
            SELECT FROM retention_run g WHERE g.run_id = runs.run_id AND g.gone_at IS NULL))
    AND EXISTS (SELECT FROM work_part_00 WHERE run_id = $1)`

	// While we wait for the lock, who would read or write the partition waits for us: briefly, and then we try again.
	waitBriefly = `SET LOCAL lock_timeout = '50ms'`

	lockPartition = `LOCK TABLE work_part_00 IN ACCESS EXCLUSIVE MODE`

	emptyPartition = `TRUNCATE work_part_00`

	noteEmptied = `
UPDATE retention_run SET deleted = deleted + items * CASE WHEN $2 THEN steps ELSE 1 END
WHERE run_id = $1 AND gone_at IS NULL`
)

// Emptying is what became of trying to empty the partitions of a run.
type Emptying struct {
	Emptied int  // tables that have no row of the run any more, since nobody else had one there
	Busy    bool // somebody is at work in one that could be emptied: it may be tried again
}

// Empty takes away the items and outcomes of a run that is being deleted where no other run has any in the same
// partition, but for such as are being deleted too. What it leaves is for [Store.DeletePiece]. Leader work.
func (s Store) Empty(ctx context.Context, lease workqueue.Lease, run workqueue.RunID) (out Emptying, err error) {
	for _, table := range []string{"work_part", "work_queue"} {
		emptied, err := s.emptyOne(ctx, lease, run, table)
		switch {
		case pg.IsLockTimeout(err):
			out.Busy = true
		case err != nil:
			return out, fmt.Errorf("empty the partition of run %s in %s: %w", run, table, err)
		case emptied:
			out.Emptied++
		}
	}
	return out, nil
}

func (s Store) emptyOne(ctx context.Context, lease workqueue.Lease, run workqueue.RunID, table string,
) (emptied bool, err error) {
	name := fmt.Sprintf("%s_%02d", table, run.Partition())
	say := func(statement string) string { return strings.ReplaceAll(statement, "work_part_00", name) }
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		emptied = false
		var large, spent bool
		err := tx.QueryRow(ctx, isLarge, run, leastToEmpty).Scan(&large)
		if err != nil || !large {
			return err
		}
		// The first look spares everybody the lock, the second one is what counts.
		for _, before := range [][]string{nil, {waitBriefly, say(lockPartition)}} {
			for _, statement := range before {
				if _, err := tx.Exec(ctx, statement); err != nil {
					return err
				}
			}
			if err := tx.QueryRow(ctx, say(partitionIsSpent), run).Scan(&spent); err != nil || !spent {
				return err
			}
		}
		if _, err := tx.Exec(ctx, say(emptyPartition)); err != nil {
			return err
		}
		emptied = true
		_, err = tx.Exec(ctx, noteEmptied, run, table == "work_part")
		return err
	})
	return emptied && err == nil, err
}

const isLarge = `
SELECT EXISTS (SELECT FROM retention_run WHERE run_id = $1 AND gone_at IS NULL AND items >= $2)`
