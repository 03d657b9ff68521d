package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Cancelled is what a cancel stopped; its Items have no outcome.
type Cancelled struct {
	Controlled

	Requests []workqueue.Sent // that may still be in the work stream
}

const (
	// While this is locked, no claim of the run is in progress.
	lockStepsOfRun = `SELECT step FROM run_step WHERE run_id = $1 ORDER BY step FOR UPDATE`

	cancelSlices = `
UPDATE work_slice
SET state = 'cancelled', ended_at = tranche_now(), error_code = 'cancelled', error_message = 'the run was cancelled'
WHERE run_id = $1 AND state IN ('scheduled', 'claimed', 'sent')
RETURNING id, coalesce(stream_seq, 0), coalesce(stream_epoch, 0)`

	// forgetBlocks removes ready items from the index for claims. The blocks were locked before, after the slices.
	forgetBlocks = `UPDATE work_block SET endpoint = NULL WHERE run_id = $1 AND endpoint IS NOT NULL AND has_ready`

	cancelRun = `
UPDATE batchrun r SET state = 'cancelled', finished_at = tranche_now(), done = c.done, failed = c.failed,
    sealed_at = coalesce(r.sealed_at, tranche_now()) -- an open run is not an abandoned load
FROM (SELECT r.id, o.* FROM (VALUES ($1::uuid)) AS r (id) CROSS JOIN LATERAL (` + plane.OutcomeOfRun + `) o) c
WHERE r.id = c.id AND r.state = 'running'
RETURNING r.generation, r.items - c.done - c.failed`
)

// Cancel stops runs: no more claims, live slices end, late replies are stale. Recorded outcomes stay. Held runs can
// be cancelled, too. All runs are cancelled one at a time; an error then says what was done.
func (s Store) Cancel(ctx context.Context, c Control) (out Cancelled, err error) {
	if err := c.validate(); err != nil {
		return out, fmt.Errorf("cancel: %w", err)
	}
	runs := []workqueue.RunID{c.Run}
	if c.All {
		if runs, err = s.runsUnderWay(ctx); err != nil {
			return out, err
		}
	}
	for _, run := range runs {
		items, requests, err := s.cancel(ctx, run, &c)
		switch {
		case err == nil:
			out.Runs = append(out.Runs, run)
			out.Items += items
			out.Slices += int64(len(requests))
			out.Requests = append(out.Requests, requests...)
		case c.skips(run, err, &out.Controlled):
		case c.All:
			return out, fmt.Errorf("cancel run %s, after %d others were cancelled: %w", run, len(out.Runs), err)
		default:
			return out, fmt.Errorf("cancel run %s: %w", run, err)
		}
	}
	return out, nil
}

const idsUnderWay = `SELECT id FROM batchrun WHERE state IN ('loading', 'running')` + inSight + ` ORDER BY id`

func (s Store) runsUnderWay(ctx context.Context) ([]workqueue.RunID, error) {
	runs, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], idsUnderWay, workqueue.Namespaces(ctx))
	return runs, pg.Wrap(err, "find runs in progress")
}

func (s Store) cancel(
	ctx context.Context, run workqueue.RunID, c *Control,
) (items int64, requests []workqueue.Sent, err error) {
	err = s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockStepsOfRun, run); err != nil {
			return fmt.Errorf("lock steps: %w", err)
		}
		// With the steps and live slices locked, hardly anything can still complete the run.
		if _, err := settle.LockSlices(ctx, tx, settle.SlicesOfRun, run); err != nil {
			return err
		}
		r, err := mayCancel(ctx, tx, run)
		if err != nil {
			return err
		}
		requests, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[workqueue.Sent], cancelSlices, run)
		if err != nil {
			return fmt.Errorf("end slices: %w", err)
		}
		if _, err := tx.Exec(ctx, lockPlaced, run); err != nil {
			return fmt.Errorf("lock blocks: %w", err)
		}
		if _, err := tx.Exec(ctx, forgetBlocks, run); err != nil {
			return fmt.Errorf("forget what is ready: %w", err)
		}
		if err := tracker.Cancel(ctx, tx, uuid.UUID(run)); err != nil {
			return err
		}
		var gen workqueue.Generation
		err = tx.QueryRow(ctx, cancelRun, run).Scan(&gen, &items)
		if errors.Is(err, pgx.ErrNoRows) {
			return &workqueue.StateError{Run: run, State: "just completed", Op: "cancel", Fix: "there is nothing to stop"}
		}
		if err != nil {
			return fmt.Errorf("end run: %w", err)
		}
		return r.noteCancel(ctx, tx, c, items)
	})
	return items, requests, err
}

func (r *RunHold) noteCancel(ctx context.Context, tx pgx.Tx, c *Control, items int64) error {
	detail := map[string]any{"items_without_outcome": items}
	ledger.AddReason(detail, c.Reason)
	err := ledger.AuditChange(ctx, tx, ledger.Action{Actor: c.Actor, Name: "cancel", Run: r.id, Detail: detail,
		Before: map[string]any{"state": r.state, "hold": r.Hold}, After: map[string]any{"state": "cancelled"}})
	if err != nil {
		return err
	}
	return ledger.AddEvent(ctx, tx, r.id, r.Generation, workqueue.EventCancelled, detail)
}

func mayCancel(ctx context.Context, tx pgx.Tx, run workqueue.RunID) (*RunHold, error) {
	r, err := readHold(ctx, tx, run)
	switch {
	case err != nil:
		return nil, err
	case r.state == "loading":
		return nil, &workqueue.StateError{Run: run, State: r.state, Op: "cancel",
			Fix: "stop the upload, and it is cleared away"}
	case r.state != "running":
		return nil, &workqueue.StateError{Run: run, State: r.state, Op: "cancel", Fix: "there is nothing to stop"}
	}
	return r, nil
}

const (
	// Its steps and it are locked, which serializes with deleting, resuming and continuing it.
	cancelledRun = `
SELECT r.state, r.generation, r.items - coalesce(r.done, 0) - coalesce(r.failed, 0),
    r.sealed_at IS NOT NULL, coalesce(t.items, 0) < r.items,
    (SELECT o.id FROM batchrun o WHERE o.from_run = r.id ORDER BY o.id DESC LIMIT 1)
FROM batchrun r LEFT JOIN tracker_batch t ON t.id = r.id WHERE r.id = $1`

	lockBlocksOfRun = `SELECT step FROM work_block WHERE run_id = $1 ORDER BY step, block FOR NO KEY UPDATE`

	// Only a cancel leaves items in ended slices. Writing ready also sets the endpoint, so that nodes find the items.
	putBack = `
WITH back AS MATERIALIZED (
    SELECT step, block, bit_or(remaining) AS mask FROM work_slice
    WHERE run_id = $1 AND state = 'cancelled' AND remaining IS NOT NULL GROUP BY step, block),
emptied AS (
    UPDATE work_slice SET remaining = NULL
    WHERE run_id = $1 AND state = 'cancelled' AND remaining IS NOT NULL)
UPDATE work_block b SET ready = b.ready | coalesce(
    (SELECT k.mask FROM back k WHERE k.step = b.step AND k.block = b.block), B'0'::bit(8192))
WHERE b.run_id = $1
    AND (b.has_ready OR EXISTS (SELECT FROM back k WHERE k.step = b.step AND k.block = b.block))`

	reviveRun = `
WITH paced AS (` + ClearPace + `)
UPDATE batchrun SET state = 'running', generation = generation + 1, done = NULL, failed = NULL, accepted = 0,
    finished_at = NULL, started_at = tranche_now(), done_by = CASE WHEN done_by > tranche_now() THEN done_by END,
    at_risk = NULL, gentle = gentle AND coalesce(done_by > tranche_now(), false)
WHERE id = $1 AND state = 'cancelled' AND generation = $2`
)

// revive continues a cancelled run in the next generation: items without an outcome become ready, or wait as before.
// For a run in another state it returns false. The run's hold ends, except a canary's, which needs approval.
func (s Store) revive(
	ctx context.Context, tx pgx.Tx, c *Control, maxFailed *string, out *Controlled,
) (revived bool, err error) {
	if c.All {
		return false, nil
	}
	if r, err := readHold(ctx, tx, c.Run); err != nil || r.state != "cancelled" {
		return false, err
	}
	if _, err := tx.Exec(ctx, lockStepsOfRun, c.Run); err != nil {
		return false, fmt.Errorf("lock steps: %w", err)
	}
	if _, err := s.db.SealAgain(ctx, tx, c.Run, "resume"); err != nil {
		return false, err
	}
	// Against the order of locks, but its blocks are locked only with its steps. A run that continues it has committed.
	if _, err := tx.Exec(ctx, lockRun, c.Run); err != nil {
		return false, fmt.Errorf("lock the run: %w", err)
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
	if err := pg.CheckRows(1)(tx.Exec(ctx, reviveRun, c.Run, gen)); err != nil {
		return false, fmt.Errorf("begin the next generation: %w", err)
	}
	out.Runs, out.Items = []workqueue.RunID{c.Run}, left
	return true, c.goOn(ctx, tx, maxFailed, out)
}

// mayRevive refuses a run that cannot continue, and counts its items without an outcome. None: it was just continued.
func (c *Control) mayRevive(ctx context.Context, tx pgx.Tx) (gen workqueue.Generation, left int64, err error) {
	var state string
	var whole, unplaced bool
	var later *workqueue.RunID
	err = tx.QueryRow(ctx, cancelledRun, c.Run).Scan(&state, &gen, &left, &whole, &unplaced, &later)
	if err != nil {
		return 0, 0, pg.Wrap(pg.NoRow(err, workqueue.ErrNotFound), "run %s", c.Run)
	}
	refused := &workqueue.StateError{Run: c.Run, State: state, Op: "resume"}
	switch {
	case state != "cancelled":
		return 0, 0, nil
	case !whole:
		refused.State, refused.Fix = "an abandoned load", "start it again"
	case later != nil:
		refused.State = fmt.Sprintf("cancelled, and run %s continues it", later)
		refused.Fix = "its items would be done twice; continue with that one"
	case unplaced:
		refused.State = "cancelled while it was open, with items that had not begun"
		refused.Fix = fmt.Sprintf("start a run of them: tranche run start --from %s", c.Run)
	case left == 0:
		refused.State = "cancelled, and every item has its outcome"
		refused.Fix = fmt.Sprintf("nothing to resume; what failed can be continued: tranche run start "+
			"--from %s", c.Run)
	default:
		return gen, left, nil
	}
	return 0, 0, refused
}

func (c *Control) goOn(ctx context.Context, tx pgx.Tx, maxFailed *string, out *Controlled) error {
	runs, err := LockHolds(ctx, tx, c, "")
	if err != nil {
		return err
	}
	r := runs[0]
	after := map[string]any{"state": "running", "generation": r.Generation, "hold": r.Hold}
	before := map[string]any{"state": "cancelled", "generation": r.Generation - 1, "hold": r.Hold}
	// A run that was open has its items now, and of a percentage their number.
	if err := r.setThreshold(ctx, tx, c.Actor, *cmp.Or(maxFailed, &r.maxFailed)); err != nil {
		return err
	}
	switch r.Hold {
	case "":
	case HoldCanary:
		out.Paused = r.Detail
	default:
		if err := r.prepare(ctx, tx, c.Actor, nil); err != nil {
			return err
		}
		if err := r.mayResume(); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, clearHolds, []workqueue.RunID{r.id}); err != nil {
			return fmt.Errorf("end the hold: %w", err)
		}
		after["hold"] = ""
	}
	detail := map[string]any{"items_without_outcome": out.Items, "generation": r.Generation, "hold": after["hold"]}
	ledger.AddReason(detail, c.Reason)
	err = ledger.AuditChange(ctx, tx, ledger.Action{Actor: c.Actor, Name: "resume", Run: c.Run, Detail: detail,
		Before: before, After: after})
	if err != nil {
		return err
	}
	return ledger.AddEvent(ctx, tx, c.Run, r.Generation, workqueue.EventResumed, detail)
}
