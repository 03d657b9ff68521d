package redo

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// The row is locked, and what becomes of its hold and its canary is computed from it.
const rearmRun = `
UPDATE batchrun
SET state = 'running', generation = generation + 1, done = NULL, failed = NULL, accepted = 0,
    finished_at = NULL,
    started_at = tranche_now(), hold = nullif($3, ''), hold_detail = $4, held_at = $5, held_by = $6,
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
func (r *redo) rearm(ctx context.Context, c *newCanary, d *ledger.Difference) (*control.RunHold, error) {
	if len(r.moved) > 0 { // else the run is under way, and what was corrected is to be done anyway
		if _, err := tracker.Rearm(ctx, r.tx, uuid.UUID(r.run), r.moved); err != nil {
			return nil, err
		}
	}
	if err := settle.AnswerGuard(ctx, r.tx, r.run); err != nil {
		return nil, fmt.Errorf("end the guards of run %s: %w", r.run, err)
	}
	runs, err := control.LockHolds(ctx, r.tx, &control.Control{Run: r.run}, "")
	if err != nil {
		return nil, err
	}
	run := runs[0]
	hold := run.Hold
	sampling := run.Rearm(c != nil && c.items > 0, r.held > 0)
	d.Add("hold", string(hold), string(run.Hold))
	var canary *int
	var auto *bool
	if sampling && c != nil {
		c.sampling = true
		canary, auto = &c.items, &c.auto
	}
	err = r.tx.QueryRow(ctx, rearmRun, r.run, r.generation, string(run.Hold), run.Detail, run.At, run.By, canary, auto,
		run.Canary).Scan(&run.Generation)
	if err != nil {
		return nil, fmt.Errorf("open the next generation of run %s: %w", r.run, err)
	}
	return run, nil
}
