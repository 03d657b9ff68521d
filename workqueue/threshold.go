package workqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// percentUnit is a percent in the units that a threshold is counted in: four decimals of a percent are told apart.
const percentUnit = 10_000

// FailedLimit is how many of so many items may fail before their run is held. maxFailed is a number of items like
// "500", a part of all items like "1%" or "0.25%", rounded down, or empty for no limit; then limited is false. Any
// other text is a *SettingError.
func FailedLimit(maxFailed string, items int64) (limit int64, limited bool, err error) {
	if maxFailed == "" {
		return 0, false, nil
	}
	wrong := &SettingError{fmt.Sprintf("max failed is %.40q; give a number of items like 500, or a part of them like 1%%",
		maxFailed)}
	text, part := strings.CutSuffix(maxFailed, "%")
	if !part {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return 0, false, wrong
		}
		return int64(n), true, nil
	}
	whole, decimals, _ := strings.Cut(text, ".")
	if len(decimals) > 4 || strings.HasSuffix(text, ".") {
		return 0, false, wrong
	}
	digits := whole + decimals + strings.Repeat("0", 4-len(decimals))
	units, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || whole == "" || units > 100*percentUnit {
		return 0, false, wrong
	}
	return items * int64(units) / (100 * percentUnit), true, nil
}

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
func (s *Store) CheckThreshold(ctx context.Context, run RunID) (held bool, err error) {
	var over bool
	if err := s.pool.QueryRow(ctx, overThreshold, run).Scan(&over); err != nil {
		return false, fmt.Errorf("check the threshold of run %s: %w", run, err)
	}
	if !over {
		return false, nil
	}
	err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		held = false
		r := runHold{id: run}
		err := tx.QueryRow(ctx, lockThreshold, run).Scan(&r.generation, &r.items, &r.maxFailed, &r.limit)
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
		return holdRuns(ctx, tx, []*runHold{&r}, holding{HoldThreshold, r.overLimit(), Engine})
	})
	if err != nil {
		return false, fmt.Errorf("hold run %s for its threshold: %w", run, err)
	}
	return held, nil
}

// DueHold is a run that Store.CheckThreshold or Store.CheckCanary would act on.
type DueHold struct {
	Run       RunID
	Threshold bool // more items failed than may
	Canary    bool // the sample has ended
}

// The runs under way that have a limit or a sample, by batchrun_limited.
const dueHolds = `
SELECT due.id, due.threshold, due.canary FROM (
    SELECT r.id, coalesce(r.failed_limit < (` + failedItems + `), false) AS threshold,
           r.canary_state IS NOT DISTINCT FROM 'sampling' AND ` + sampleEnded + ` AS canary
    FROM batchrun r
    WHERE r.state = 'running' AND r.hold IS NULL AND (r.failed_limit IS NOT NULL OR r.canary_state = 'sampling')) due
WHERE due.threshold OR due.canary`

// DueHolds returns the runs whose thresholds are passed or whose samples have ended, for whoever sees to it that
// nothing is overlooked: the checks that nodes make by themselves may be lost with them.
func (s *Store) DueHolds(ctx context.Context) ([]DueHold, error) {
	rows, err := s.pool.Query(ctx, dueHolds)
	if err != nil {
		return nil, fmt.Errorf("look for runs to hold: %w", err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[DueHold])
	if err != nil {
		return nil, fmt.Errorf("look for runs to hold: %w", err)
	}
	return due, nil
}
