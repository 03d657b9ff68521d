package control

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

const (
	// Locks blocks with held items in order. An item held at several steps counts once.
	lockHeldBlocks = `
SELECT coalesce(sum(bit_count(items.held)), 0)::bigint FROM (
    SELECT bit_or(locked.held) AS held FROM (
        SELECT block, held FROM work_block WHERE run_id = $1 AND held IS NOT NULL
        ORDER BY step, block FOR NO KEY UPDATE) locked
    GROUP BY locked.block) items`

	releaseHeld = `
UPDATE work_block SET ready = ready | held, held = NULL WHERE run_id = $1 AND held IS NOT NULL`

	// A hold other than the canary's stays.
	passCanary = `
UPDATE batchrun SET canary_state = 'passed',
    hold = CASE WHEN hold <> 'canary' THEN hold END, held_at = CASE WHEN hold <> 'canary' THEN held_at END,
    hold_detail = CASE WHEN hold <> 'canary' THEN hold_detail ELSE '' END,
    held_by = CASE WHEN hold <> 'canary' THEN held_by ELSE '' END
WHERE id = $1 AND state = 'running' AND canary_state IN ('sampling', 'waiting')
RETURNING coalesce(hold, '')`
)

const runsThatWait = `
SELECT id FROM batchrun WHERE state = 'running' AND canary_state = 'waiting'` + inSight + ` ORDER BY id`

// Approve releases the held items of runs whose canary waits for approval, or starts a step: see approveStep.
func (s Store) Approve(ctx context.Context, c Control) (out Controlled, err error) {
	if err := c.validate(); err != nil {
		return out, fmt.Errorf("approve: %w", err)
	}
	if c.Step != "" {
		return s.approveStep(ctx, &c)
	}
	runs := []workqueue.RunID{c.Run}
	if c.All {
		runs, err = pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], runsThatWait,
			workqueue.Namespaces(ctx))
		if err != nil {
			return out, fmt.Errorf("find runs to approve: %w", err)
		}
	}
	for _, run := range runs {
		items, err := s.approve(ctx, Control{Run: run, Reason: c.Reason, Actor: c.Actor})
		switch {
		case err == nil:
			out.Runs = append(out.Runs, run)
			out.Items += items
		case !c.skips(run, err, &out):
			return out, fmt.Errorf("approve: %w", err)
		}
	}
	return out, nil
}

func (s Store) approve(ctx context.Context, c Control) (items int64, err error) {
	err = s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, plane.LockStepsOfCanary, c.Run); err != nil {
			return fmt.Errorf("lock steps: %w", err)
		}
		r, err := readHold(ctx, tx, c.Run)
		if err != nil {
			return err
		}
		if r.state == "running" && r.Canary != "sampling" && r.Canary != "waiting" {
			if err := waitsAtGates(ctx, tx, c.Run); err != nil {
				return err
			}
		}
		if err := r.mayApprove(); err != nil {
			return err
		}
		items, err = r.release(ctx, tx, c.Actor, c.Reason)
		return err
	})
	return items, err
}

func (r *RunHold) mayApprove() error {
	switch {
	case r.state != "running":
		return &workqueue.StateError{Run: r.id, State: r.state, Op: "approve", Fix: "nothing waits for approval"}
	case r.Canary == "sampling" && r.Hold != "":
		return &workqueue.StateError{Run: r.id, State: "paused, and its canary has not ended", Op: "approve",
			Fix: "resume it first with tranche run resume " + r.id.String() + ", and approve it after the sample ends"}
	case r.Canary == "sampling":
		return &workqueue.StateError{Run: r.id, State: "still running its canary", Op: "approve",
			Fix: "wait until the sample ends"}
	case r.Canary != "waiting":
		return &workqueue.StateError{Run: r.id, State: "not waiting for approval", Op: "approve",
			Fix: "there is nothing to do"}
	}
	return nil
}

// release makes the items held by a canary ready and returns their number. The run's steps are locked.
func (r *RunHold) release(ctx context.Context, tx pgx.Tx, actor, reason string) (items int64, err error) {
	if err := tx.QueryRow(ctx, lockHeldBlocks, r.id).Scan(&items); err != nil {
		return 0, fmt.Errorf("lock blocks: %w", err)
	}
	if _, err := tx.Exec(ctx, releaseHeld, r.id); err != nil {
		return 0, fmt.Errorf("release items: %w", err)
	}
	hold := "" // that stays
	if err := tx.QueryRow(ctx, passCanary, r.id).Scan(&hold); err != nil {
		return 0, fmt.Errorf("pass the canary of run %s: %w", r.id, err)
	}
	detail := map[string]any{"items": items, "reason": pg.Plain(reason), "by": pg.Plain(actor), "hold": hold}
	err = ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "approve", Run: r.id, Detail: detail,
		Before: map[string]any{"canary": r.Canary, "hold": r.Hold}, After: map[string]any{"canary": "passed"}})
	if err != nil {
		return 0, err
	}
	return items, ledger.AddEvent(ctx, tx, r.id, r.Generation, workqueue.EventApproved, detail)
}

// Acceptance is who accepted a failure.
type Acceptance struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
}

// The last acceptance of an item. The primary keys of work_block and run_acceptance.
const acceptancesOf = `
SELECT DISTINCT ON (b.step) b.step, a.at, a.actor, a.reason
FROM work_block b JOIN run_acceptance a USING (run_id, step, block)
WHERE b.run_id = $1 AND b.step = ANY ($4) AND b.block = $2 AND get_bit(b.accepted, $3) = 1 AND get_bit(a.items, $3) = 1
ORDER BY b.step, a.id DESC`

// AcceptancesOf returns who accepted the failures of an item, by step.
func AcceptancesOf(ctx context.Context, tx pgx.Tx, run workqueue.RunID, item workqueue.Ordinal, steps []workqueue.Step,
) (map[workqueue.Step]*Acceptance, error) {
	block, bit := item.Block()
	all := map[workqueue.Step]*Acceptance{}
	var step workqueue.Step
	var a Acceptance
	err := pg.Each(pg.Rows(ctx, tx, acceptancesOf, run, block, bit, steps),
		[]any{&step, &a.At, &a.By, &a.Reason}, func() {
			one := a
			all[step] = &one
		})
	return all, pg.Wrap(err, "read who accepted item %d", item)
}
