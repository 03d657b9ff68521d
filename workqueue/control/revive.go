package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// Its steps are held: who would delete it, or carry it on, is waited for or waits. A later run that was begun between
	// this and the commit finds a run that is under way.
	cancelledRun = `
SELECT r.state, r.generation, r.items - coalesce(r.done, 0) - coalesce(r.failed, 0),
    r.sealed_at IS NOT NULL, coalesce(t.items, 0) < r.items,
    (SELECT o.id FROM batchrun o WHERE o.from_run = r.id ORDER BY o.id DESC LIMIT 1)
FROM batchrun r LEFT JOIN tracker_batch t ON t.id = r.id WHERE r.id = $1`

	lockBlocksOfRun = `SELECT step FROM work_block WHERE run_id = $1 ORDER BY step, block FOR NO KEY UPDATE`

	// Only a cancel leaves items in slices that have ended so: who withdraws items takes them out. What was ready is found
	// again by nodes, too: writing ready fills in where.
	putBack = `
WITH back AS MATERIALIZED (
    SELECT step, block, bit_or(remaining) AS mask FROM work_slice
    WHERE run_id = $1 AND state = 'cancelled' AND remaining <> B'0'::bit(8192) GROUP BY step, block),
emptied AS (
    UPDATE work_slice SET remaining = B'0'::bit(8192)
    WHERE run_id = $1 AND state = 'cancelled' AND remaining <> B'0'::bit(8192))
UPDATE work_block b SET ready = b.ready | coalesce(
    (SELECT k.mask FROM back k WHERE k.step = b.step AND k.block = b.block), B'0'::bit(8192))
WHERE b.run_id = $1
    AND (b.has_ready OR EXISTS (SELECT FROM back k WHERE k.step = b.step AND k.block = b.block))`

	reviveRun = `
UPDATE batchrun SET state = 'running', generation = generation + 1, done = NULL, failed = NULL, accepted = 0,
    finished_at = NULL, started_at = tranche_now()
WHERE id = $1 AND state = 'cancelled' AND generation = $2`
)

// revive has a cancelled run go on: what had no outcome is ready again, or waits as it did, in the next generation,
// whose end is told as any other. It reports false, and has done nothing, for a run in another state. A hold of the run
// ends, but for that of a canary, which somebody has to approve.
func (c *Control) revive(ctx context.Context, tx pgx.Tx, maxFailed *string, out *Controlled) (revived bool, err error) {
	if c.All {
		return false, nil
	}
	if r, err := readHold(ctx, tx, c.Run); err != nil || r.state != "cancelled" {
		return false, err
	}
	if _, err := tx.Exec(ctx, lockStepsOfRun, c.Run); err != nil {
		return false, fmt.Errorf("lock steps: %w", err)
	}
	gen, left, err := c.mayRevive(ctx, tx)
	if err != nil || left == 0 {
		return false, err
	}
	if _, err := tx.Exec(ctx, lockBlocksOfRun, c.Run); err != nil {
		return false, fmt.Errorf("lock blocks: %w", err)
	}
	if _, err := tx.Exec(ctx, putBack, c.Run); err != nil {
		return false, fmt.Errorf("put items back: %w", err)
	}
	if err := tracker.Reopen(ctx, tx, uuid.UUID(c.Run)); err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, reviveRun, c.Run, gen)
	if err == nil && tag.RowsAffected() != 1 {
		err = workqueue.ErrFence
	}
	if err != nil {
		return false, fmt.Errorf("begin the next generation: %w", err)
	}
	out.Runs, out.Items = []workqueue.RunID{c.Run}, left
	return true, c.goOn(ctx, tx, maxFailed, left)
}

// mayRevive refuses a run that cannot go on, and counts its items without an outcome. None: somebody else has had it
// go on.
func (c *Control) mayRevive(ctx context.Context, tx pgx.Tx) (gen workqueue.Generation, left int64, err error) {
	var state string
	var whole, unplaced bool
	var later *workqueue.RunID
	err = tx.QueryRow(ctx, cancelledRun, c.Run).Scan(&state, &gen, &left, &whole, &unplaced, &later)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, 0, fmt.Errorf("run %s: %w", c.Run, workqueue.ErrNotFound)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read run %s: %w", c.Run, err)
	}
	refused := &workqueue.StateError{Run: c.Run, State: state, Op: "resume"}
	switch {
	case state != "cancelled":
		return 0, 0, nil
	case !whole:
		refused.State, refused.Fix = "a load that was given up", "start it again"
	case later != nil:
		refused.State = fmt.Sprintf("cancelled, and run %s carries it on", later)
		refused.Fix = "its items would be done twice; go on with that one"
	case unplaced:
		refused.State = "cancelled while it was open, with items that were not begun with"
		refused.Fix = fmt.Sprintf("start a run of them: tranche run start --from %s", c.Run)
	case left == 0:
		refused.State = "cancelled, and every item has its outcome"
		refused.Fix = fmt.Sprintf("there is nothing to go on with; what failed can be carried on: tranche run start "+
			"--from %s", c.Run)
	default:
		return gen, left, nil
	}
	return 0, 0, refused
}

// goOn ends the hold of a run that is under way again, and notes what was done.
func (c *Control) goOn(ctx context.Context, tx pgx.Tx, maxFailed *string, left int64) error {
	runs, err := LockHolds(ctx, tx, c, "")
	if err != nil {
		return err
	}
	r := runs[0]
	after := map[string]any{"state": "running", "generation": r.Generation, "hold": r.Hold}
	before := map[string]any{"state": "cancelled", "generation": r.Generation - 1, "hold": r.Hold}
	switch {
	case r.Hold == HoldCanary:
	case r.Hold != "":
		if err := r.prepare(ctx, tx, c.Actor, maxFailed); err != nil {
			return err
		}
		if err := r.mayResume(); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, clearHolds, []workqueue.RunID{r.id}); err != nil {
			return fmt.Errorf("end the hold: %w", err)
		}
		after["hold"] = ""
	case maxFailed != nil:
		if err := r.setThreshold(ctx, tx, c.Actor, *maxFailed); err != nil {
			return err
		}
	}
	detail := map[string]any{"items_without_outcome": left, "generation": r.Generation}
	if c.Reason != "" {
		detail["reason"] = pg.Plain(c.Reason)
	}
	err = ledger.AuditChange(ctx, tx, ledger.Action{Actor: c.Actor, Name: "resume", Run: c.Run, Detail: detail,
		Before: before, After: after})
	if err != nil {
		return err
	}
	return ledger.AddEvent(ctx, tx, c.Run, r.Generation, workqueue.EventResumed, detail)
}
