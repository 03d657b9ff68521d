package workqueue

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	// Blocks with items that are held back, locked in order.
	lockHeldBlocks = `
SELECT coalesce(sum(locked.n), 0)::bigint FROM (
    SELECT bit_count(held) AS n FROM work_block WHERE run_id = $1 AND held IS NOT NULL
    ORDER BY step, block FOR NO KEY UPDATE) locked`

	releaseHeld = `
UPDATE work_block SET ready = ready | held, held = NULL WHERE run_id = $1 AND held IS NOT NULL`

	// A hold that is not the canary's stays.
	passCanary = `
UPDATE batchrun SET canary_state = 'passed',
    hold = CASE WHEN hold <> 'canary' THEN hold END, held_at = CASE WHEN hold <> 'canary' THEN held_at END,
    hold_detail = CASE WHEN hold <> 'canary' THEN hold_detail ELSE '' END,
    held_by = CASE WHEN hold <> 'canary' THEN held_by ELSE '' END
WHERE id = $1 AND state = 'running' AND canary_state IN ('sampling', 'waiting')`
)

// release makes ready what a canary held back, and returns how many items that is. The steps of the run are locked.
func (r *runHold) release(ctx context.Context, tx pgx.Tx, actor, reason string) (items int64, err error) {
	if err := tx.QueryRow(ctx, lockHeldBlocks, r.id).Scan(&items); err != nil {
		return 0, fmt.Errorf("lock blocks: %w", err)
	}
	if _, err := tx.Exec(ctx, releaseHeld, r.id); err != nil {
		return 0, fmt.Errorf("release items: %w", err)
	}
	tag, err := tx.Exec(ctx, passCanary, r.id)
	if err == nil && tag.RowsAffected() != 1 {
		err = errFence
	}
	if err != nil {
		return 0, fmt.Errorf("pass the canary of run %s: %w", r.id, err)
	}
	detail := map[string]any{"items": items, "reason": plain(reason), "by": plain(actor)}
	err = auditChange(ctx, tx, action{actor: actor, name: "approve", run: r.id, detail: detail,
		before: map[string]any{"canary": r.canary, "hold": r.hold}, after: map[string]any{"canary": "passed"}})
	if err != nil {
		return 0, err
	}
	return items, addEvent(ctx, tx, r.id, r.generation, EventApproved, detail)
}
