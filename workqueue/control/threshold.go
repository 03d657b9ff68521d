package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// failedItems counts items that have failed at a step that is not optional: one range of work_block's primary key.
	failedItems = `
SELECT coalesce(sum(bit_count(planes.failed)), 0)::bigint
FROM (SELECT bit_or(b.failed) AS failed FROM work_block b JOIN run_step o USING (run_id, step)
      WHERE b.run_id = r.id AND NOT o.optional GROUP BY b.block) planes`

	// Looks without a lock, so that a check that finds nothing is in nobody's way.
	overThreshold = `
SELECT EXISTS (SELECT FROM batchrun r
    WHERE r.id = $1 AND r.state = 'running' AND r.hold IS NULL AND r.failed_limit < (` + failedItems + `))`

	// The count follows in a statement of its own, so that it sees what a re-run did for which this lock waited.
	lockThreshold = `
SELECT generation, items, max_failed, failed_limit FROM batchrun
WHERE id = $1 AND state = 'running' AND hold IS NULL AND failed_limit IS NOT NULL FOR NO KEY UPDATE`

	countFailed = `SELECT (` + failedItems + `) FROM batchrun r WHERE r.id = $1`
)

// CheckThreshold holds a run of which more items have failed than may, and reports whether it did. Any node may call it
// at any time: a run that is held, has ended or is within its limit is left alone. See [Store.DueHolds].
func (s Store) CheckThreshold(ctx context.Context, run workqueue.RunID) (held bool, err error) {
	var over bool
	if err := s.db.Pool.QueryRow(ctx, overThreshold, run).Scan(&over); err != nil {
		return false, fmt.Errorf("check the threshold of run %s: %w", run, err)
	}
	if !over {
		return false, nil
	}
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		held = false
		r := RunHold{id: run}
		err := tx.QueryRow(ctx, lockThreshold, run).Scan(&r.Generation, &r.items, &r.maxFailed, &r.limit)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // somebody was faster
		}
		if err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, countFailed, run).Scan(&r.failed); err != nil {
			return err
		}
		if r.failed <= *r.limit {
			return nil
		}
		held = true
		return holdRuns(ctx, tx, []*RunHold{&r}, holding{HoldThreshold, r.overLimit(), workqueue.Engine})
	})
	if err != nil {
		return false, fmt.Errorf("hold run %s for its threshold: %w", run, err)
	}
	return held, nil
}

// CheckGuard holds a run of which a guard decided while it was held for something else, and reports whether it did.
func (s Store) CheckGuard(ctx context.Context, run workqueue.RunID) (held bool, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		held, err = settle.HoldForGuard(ctx, tx, run)
		return err
	})
	return held, err
}

// DueHold is a run that Store.CheckThreshold, Store.CheckGuard or Store.CheckCanary would act on.
type DueHold struct {
	Run       workqueue.RunID
	Threshold bool // more items failed than may
	Canary    bool // the sample has ended
	Guard     bool // its first outcomes failed
}

// The runs under way that have a limit or a sample, by batchrun_limited, and the few of which a guard has decided.
const dueHolds = `
SELECT due.id, due.threshold, due.canary, false FROM (
    SELECT r.id, coalesce(r.failed_limit < (` + failedItems + `), false) AS threshold,
           r.canary_state IS NOT DISTINCT FROM 'sampling' AND ` + sampleEnded + ` AS canary
    FROM batchrun r
    WHERE r.state = 'running' AND r.hold IS NULL AND (r.failed_limit IS NOT NULL OR r.canary_state = 'sampling')) due
WHERE due.threshold OR due.canary
UNION ALL
SELECT r.id, false, false, true FROM batchrun r
WHERE r.state = 'running' AND r.hold IS NULL AND r.id IN (SELECT g.run_id FROM run_guard g WHERE g.tripped IS NOT NULL)`

// DueHolds returns the runs whose thresholds are passed or whose samples have ended, for whoever sees to it that
// nothing is overlooked: the checks that nodes make by themselves may be lost with them.
func (s Store) DueHolds(ctx context.Context) ([]DueHold, error) {
	due, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[DueHold], dueHolds)
	if err != nil {
		return nil, fmt.Errorf("look for runs to hold: %w", err)
	}
	return due, nil
}
