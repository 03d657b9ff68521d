package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// CanaryVerdict is what became of a run's sample.
type CanaryVerdict string

// The verdicts on a sample.
const (
	CanaryUndecided CanaryVerdict = ""        // there is none, it is still running, or someone else decided
	CanaryPassed    CanaryVerdict = "passed"  // the rest was released
	CanaryWaiting   CanaryVerdict = "waiting" // the run is held until someone approves
)

const (
	// sampleEnded is a condition on batchrun r: nothing of it is ready or in a slice, but for what waits at a step for all
	// items to come so far: with a sample alone that never happens. work_block_ready and work_slice_live answer it.
	sampleEnded = `NOT EXISTS (SELECT FROM work_block b JOIN run_step w USING (run_id, step)
        WHERE b.run_id = r.id AND b.has_ready AND (NOT w.barrier OR w.barrier_passed))
    AND NOT EXISTS (SELECT FROM work_slice s WHERE s.run_id = r.id AND s.state IN ('scheduled', 'claimed', 'sent'))`

	canaryEnded = `
SELECT r.generation, r.items, r.max_failed, r.failed_limit, r.canary_auto_approve FROM batchrun r
WHERE r.id = $1 AND r.state = 'running' AND r.hold IS NULL AND r.canary_state = 'sampling' AND ` + sampleEnded

	// The sample is the items that were asked for since the canary began, at whatever step; no one was asked about what
	// is invalid. One is lost when a step that is not optional has failed for it.
	canarySample = `
WITH asked AS (
    SELECT s.block, bit_or(s.mask) AS mask FROM work_slice s
    WHERE s.run_id = $1 AND s.generation >= (SELECT coalesce(r.canary_generation, 1) FROM batchrun r WHERE r.id = $1)
        AND NOT (s.state = 'cancelled' AND s.error_code IS NOT DISTINCT FROM $2)
    GROUP BY s.block
), lost AS (
    SELECT b.block, bit_or(b.failed) AS failed FROM work_block b JOIN run_step o USING (run_id, step)
    WHERE b.run_id = $1 AND NOT o.optional GROUP BY b.block)
SELECT coalesce(sum(bit_count(a.mask)), 0)::bigint, coalesce(sum(bit_count(a.mask & l.failed)), 0)::bigint
FROM asked a LEFT JOIN lost l USING (block)`
)

// CheckCanary decides on a sample once nothing of it is ready or in progress. When the run goes on by itself and no
// greater part of the sample failed than its threshold allows of all items (none without a threshold), the rest is
// released; else the run is held until someone approves. Any node may call it at any time. See [Store.DueHolds].
func (s Store) CheckCanary(ctx context.Context, run workqueue.RunID) (CanaryVerdict, error) {
	var c canary
	if ended, err := c.read(ctx, s.db.Pool, run); err != nil || !ended {
		return CanaryUndecided, wrapCanary(run, err)
	}
	var verdict CanaryVerdict
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		verdict = CanaryUndecided
		if _, err := tx.Exec(ctx, plane.LockStepsOfCanary, run); err != nil {
			return fmt.Errorf("lock steps: %w", err)
		}
		c = canary{}
		ended, err := c.read(ctx, tx, run)
		if err != nil || !ended {
			return err
		}
		verdict, err = c.decide(ctx, tx)
		return err
	})
	return verdict, wrapCanary(run, err)
}

func wrapCanary(run workqueue.RunID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("check the canary of run %s: %w", run, err)
}

// canary is a sample that has ended.
type canary struct {
	RunHold

	auto         bool
	sample, lost int64 // items of it, and how many of those failed
}

func (c *canary) read(ctx context.Context, db tracker.Querier, run workqueue.RunID) (ended bool, err error) {
	c.id, c.Canary = run, "sampling"
	err = db.QueryRow(ctx, canaryEnded, run).Scan(&c.Generation, &c.items, &c.maxFailed, &c.limit, &c.auto)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (c *canary) decide(ctx context.Context, tx pgx.Tx) (CanaryVerdict, error) {
	if err := tx.QueryRow(ctx, canarySample, c.id, workqueue.CodeInvalid).Scan(&c.sample, &c.lost); err != nil {
		return "", fmt.Errorf("count the sample: %w", err)
	}
	detail := fmt.Sprintf("its canary ended: %s of %s items failed", Grouped(c.lost), Grouped(c.sample))
	if c.auto && c.good() {
		_, err := c.release(ctx, tx, workqueue.Engine, detail)
		return CanaryPassed, err
	}
	switch {
	case c.sample == 0:
		detail = "no one was asked about any item of its canary"
	case c.auto:
		detail += ", more than may (" + c.allowed() + ")"
	}
	return c.wait(ctx, tx, detail)
}

// wait holds the run, unless someone paused it just now: then the sample is judged when it is resumed. Pauses take no
// lock but that of the run.
func (c *canary) wait(ctx context.Context, tx pgx.Tx, detail string) (CanaryVerdict, error) {
	runs, err := LockHolds(ctx, tx, &Control{Run: c.id}, "")
	if err != nil || runs[0].Hold != "" {
		return CanaryUndecided, err
	}
	if err := holdRuns(ctx, tx, runs, holding{HoldCanary, detail, workqueue.Engine}); err != nil {
		return CanaryUndecided, err
	}
	if _, err := tx.Exec(ctx, canaryWaits, c.id); err != nil {
		return CanaryUndecided, fmt.Errorf("have the canary wait: %w", err)
	}
	return CanaryWaiting, nil
}

const canaryWaits = `UPDATE batchrun SET canary_state = 'waiting' WHERE id = $1`

// good reports whether no greater part of the sample failed than may of all items. A sample of which all is invalid
// tells nothing.
func (c *canary) good() bool {
	limit := int64(0)
	if c.limit != nil {
		limit = *c.limit
	}
	return c.sample > 0 && c.lost*c.items <= limit*c.sample
}

func (c *canary) allowed() string {
	if c.limit == nil {
		return "none without --max-failed"
	}
	return "--max-failed " + c.maxFailed
}

const (
	// failedItems counts items that have failed at a step that is not optional: one range of work_block's primary key.
	failedItems = `
SELECT coalesce(sum(bit_count(planes.failed)), 0)::bigint
FROM (SELECT bit_or(b.failed) AS failed FROM work_block b JOIN run_step o USING (run_id, step)
      WHERE b.run_id = r.id AND NOT o.optional GROUP BY b.block) planes`

	// Looks without a lock, so that a check that finds nothing is in no one's way.
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
			return nil // someone was faster
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

// CheckFailFast holds a run whose fail-fast limit was reached while it was held for another reason, and reports whether
// it did.
func (s Store) CheckFailFast(ctx context.Context, run workqueue.RunID) (held bool, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		held, err = settle.HoldForFailFast(ctx, tx, run)
		return err
	})
	return held, err
}

// DueHold is a run that Store.CheckThreshold, Store.CheckFailFast or Store.CheckCanary would act on.
type DueHold struct {
	Run       workqueue.RunID
	Threshold bool // more items failed than may
	Canary    bool // the sample has ended
	FailFast  bool // its first outcomes failed
}

// The runs in progress that have a limit or a sample, by batchrun_limited, and the few whose fail-fast limit was
// reached.
const dueHolds = `
SELECT due.id, due.threshold, due.canary, false FROM (
    SELECT r.id, coalesce(r.failed_limit < (` + failedItems + `), false) AS threshold,
           r.canary_state IS NOT DISTINCT FROM 'sampling' AND ` + sampleEnded + ` AS canary
    FROM batchrun r
    WHERE r.state = 'running' AND r.hold IS NULL AND (r.failed_limit IS NOT NULL OR r.canary_state = 'sampling')) due
WHERE due.threshold OR due.canary
UNION ALL
SELECT r.id, false, false, true FROM batchrun r
WHERE r.state = 'running' AND r.hold IS NULL AND r.id IN (
    SELECT g.run_id FROM run_fail_fast g WHERE g.tripped IS NOT NULL)`

// DueHolds returns the runs whose thresholds are passed or whose samples have ended, for whoever sees to it that
// nothing is overlooked: the checks that nodes make by themselves may be lost with them.
func (s Store) DueHolds(ctx context.Context) ([]DueHold, error) {
	due, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[DueHold], dueHolds)
	if err != nil {
		return nil, fmt.Errorf("look for runs to hold: %w", err)
	}
	return due, nil
}
