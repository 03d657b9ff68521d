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

// CanaryVerdict is the verdict on a run's sample.
type CanaryVerdict string

// The verdicts on a sample.
const (
	CanaryUndecided CanaryVerdict = ""        // no canary, it is still running, or an operator decided
	CanaryPassed    CanaryVerdict = "passed"  // the rest was released
	CanaryWaiting   CanaryVerdict = "waiting" // the run is held until approval
)

const (
	// sampleEnded is a condition on batchrun r: nothing is ready or in a slice, except at barriers, which a sample
	// alone never passes. By work_block_ready and work_slice_live.
	sampleEnded = `NOT EXISTS (SELECT FROM work_block b JOIN run_step w USING (run_id, step)
        WHERE b.run_id = r.id AND b.has_ready AND (NOT w.barrier OR w.barrier_passed))
    AND NOT EXISTS (SELECT FROM work_slice s WHERE s.run_id = r.id AND s.state IN ('scheduled', 'claimed', 'sent'))`

	canaryEnded = `
SELECT r.generation, r.items, r.max_failed, r.failed_limit, r.canary_auto_approve FROM batchrun r
WHERE r.id = $1 AND r.state = 'running' AND r.hold IS NULL AND r.canary_state = 'sampling' AND ` + sampleEnded

	// The sample is the items requested since the canary began. An item is lost if a required step failed it.
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

// CheckCanary judges a sample once nothing of it is ready or in progress. If the run approves automatically and no
// greater share of the sample failed than the threshold permits of all items (none without one), the rest is
// released; otherwise the run is held until approval. Any node may call it at any time. See [Store.DueHolds].
func (s Store) CheckCanary(ctx context.Context, run workqueue.RunID) (CanaryVerdict, error) {
	var c canary
	if ended, err := c.read(ctx, s.db.Pool, run); err != nil || !ended {
		return CanaryUndecided, pg.Wrap(err, "check the canary of run %s", run)
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
	return verdict, pg.Wrap(err, "check the canary of run %s", run)
}

type canary struct {
	RunHold

	auto         bool
	sample, lost int64 // items in it, and how many of them failed
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
		detail = "no item of its canary was requested"
	case c.auto:
		detail += ", more than may (" + c.allowed() + ")"
	}
	return c.wait(ctx, tx, detail)
}

// wait holds the run, unless it was just paused: then a resume judges the sample. Pauses lock only the run.
func (c *canary) wait(ctx context.Context, tx pgx.Tx, detail string) (CanaryVerdict, error) {
	runs, err := LockHolds(ctx, tx, &Control{Run: c.id}, "")
	if err != nil || runs[0].Hold != "" {
		return CanaryUndecided, err
	}
	if err := holdRuns(ctx, tx, runs, holding{HoldCanary, detail, workqueue.Engine}); err != nil {
		return CanaryUndecided, err
	}
	_, err = tx.Exec(ctx, canaryWaits, c.id)
	return CanaryWaiting, pg.Wrap(err, "have the canary wait")
}

const canaryWaits = `UPDATE batchrun SET canary_state = 'waiting' WHERE id = $1`

// good reports whether no greater share failed than is permitted of all items. Only invalid items prove nothing.
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
	// failedItems counts items that failed at a required step: a range of work_block's primary key.
	failedItems = `
SELECT coalesce(sum(bit_count(planes.failed)), 0)::bigint
FROM (SELECT bit_or(b.failed) AS failed FROM work_block b JOIN run_step o USING (run_id, step)
      WHERE b.run_id = r.id AND NOT o.optional GROUP BY b.block) planes`

	// Without a lock, so that a check without effect blocks nothing.
	overThreshold = `
SELECT EXISTS (SELECT FROM batchrun r
    WHERE r.id = $1 AND r.state = 'running' AND r.hold IS NULL AND r.failed_limit < (` + failedItems + `))`

	// The count is a separate statement after it, so it sees the rerun that this lock waited for.
	lockThreshold = `
SELECT generation, items, max_failed, failed_limit FROM batchrun
WHERE id = $1 AND state = 'running' AND hold IS NULL AND failed_limit IS NOT NULL FOR NO KEY UPDATE`

	countFailed = `SELECT (` + failedItems + `) FROM batchrun r WHERE r.id = $1`
)

// CheckThreshold holds a run with more failed items than permitted, and reports whether it did. Any node may call it
// at any time: a run that is held, ended or is within its limit is left alone. See [Store.DueHolds].
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
			return nil // another check was faster
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
	return held, pg.Wrap(err, "hold run %s for its threshold", run)
}

// CheckFailFast holds a run whose fail-fast limit was reached during another hold. It reports whether it did.
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
	Threshold bool // too many items failed
	Canary    bool // the sample ended
	FailFast  bool // a fail-fast limit was reached
}

// Runs in progress with a limit or sample, by batchrun_limited, and those whose fail-fast limit was reached.
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

// DueHolds returns the runs over their thresholds or with ended samples: checks may be lost with their node.
func (s Store) DueHolds(ctx context.Context) ([]DueHold, error) {
	due, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[DueHold], dueHolds)
	return due, pg.Wrap(err, "find runs to hold")
}
