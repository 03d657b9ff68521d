package workqueue

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// The row is locked, and what becomes of its hold and its canary is computed from it.
const rearmRun = `
UPDATE batchrun
SET state = 'running', generation = generation + 1, done = NULL, failed = NULL, finished_at = NULL,
    started_at = clock_timestamp(), hold = nullif($3, ''), hold_detail = $4, held_at = $5, held_by = $6,
    canary = coalesce($7, canary), canary_auto = coalesce($8, canary_auto), canary_state = nullif($9, ''),
    canary_generation = CASE WHEN $7 IS NULL THEN canary_generation ELSE generation + 1 END
WHERE id = $1 AND state IN ('running', 'completed') AND generation = $2
RETURNING generation`

// newCanary is a sample that is to begin with a generation.
type newCanary struct {
	items    int
	auto     bool
	sampling bool // it does begin
}

// rearm opens the next generation: the tracker first, the run's row last, as the order of locks wants it. It returns
// the run as it is then.
func (r *redo) rearm(ctx context.Context, c *newCanary, d *difference) (*runHold, error) {
	if _, err := tracker.Rearm(ctx, r.tx, uuid.UUID(r.run), r.moved); err != nil {
		return nil, err
	}
	runs, err := lockHolds(ctx, r.tx, &Control{Run: r.run}, "")
	if err != nil {
		return nil, err
	}
	run := runs[0]
	hold := run.hold
	sampling := run.rearm(c != nil && c.items > 0, r.held > 0)
	d.add("hold", string(hold), string(run.hold))
	var canary *int
	var auto *bool
	if sampling && c != nil {
		c.sampling = true
		canary, auto = &c.items, &c.auto
	}
	err = r.tx.QueryRow(ctx, rearmRun, r.run, r.generation, string(run.hold), run.detail, run.at, run.by, canary, auto,
		run.canary).Scan(&run.generation)
	if err != nil {
		return nil, fmt.Errorf("open the next generation of run %s: %w", r.run, err)
	}
	return run, nil
}

// rearm changes what the next generation changes of a hold and a canary, and reports whether a sample begins. A run
// that had completed is held no more. A new canary takes the place of one that waits, and of its hold; what that one
// held back stays so until the new one has ended.
func (r *runHold) rearm(canary, held bool) (sampling bool) {
	inCanary := r.canary == "sampling" || r.canary == "waiting"
	if r.state == "completed" && inCanary { // it ended with its sample
		r.canary, inCanary = "passed", false
	}
	if sampling = held || canary && inCanary; sampling {
		r.canary = "sampling"
	}
	if r.state == "completed" || r.hold == HoldCanary && sampling {
		r.hold, r.detail, r.at, r.by = "", "", nil, ""
	}
	return sampling
}
