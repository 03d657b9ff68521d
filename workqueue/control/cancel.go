package control

import (
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
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Cancelled is what a cancel stopped: its Items are those without an outcome.
type Cancelled struct {
	Controlled

	Requests []workqueue.Sent // that may still lie in the work stream
}

const (
	// Held, no claim of the run can be under way.
	lockStepsOfRun = `SELECT step FROM run_step WHERE run_id = $1 ORDER BY step FOR UPDATE`

	cancelSlices = `
UPDATE work_slice
SET state = 'cancelled', ended_at = tranche_now(), error_code = 'cancelled', error_message = 'the run was cancelled'
WHERE run_id = $1 AND state IN ('scheduled', 'claimed', 'sent')
RETURNING id, coalesce(stream_seq, 0), coalesce(stream_epoch, 0)`

	// forgetBlocks takes what is ready out of the index in which nodes look for work. The blocks are locked in order
	// before, after the slices.
	forgetBlocks = `UPDATE work_block SET endpoint = NULL WHERE run_id = $1 AND endpoint IS NOT NULL AND has_ready`

	cancelRun = `
UPDATE batchrun r SET state = 'cancelled', finished_at = tranche_now(), done = c.done, failed = c.failed,
    sealed_at = coalesce(r.sealed_at, tranche_now()) -- an open run is no load that was given up
FROM (SELECT r.id, o.* FROM (VALUES ($1::uuid)) AS r (id) CROSS JOIN LATERAL (` + settle.OutcomeOfRun + `) o) c
WHERE r.id = c.id AND r.state = 'running'
RETURNING r.generation, r.items - c.done - c.failed`
)

// Cancel stops runs: nothing of them is claimed any more, live slices end, late replies are stale. What was recorded
// stays. A held run can be cancelled too. All runs are cancelled one by one; an error then says what had been done.
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
		refused, ok := errors.AsType[*workqueue.StateError](err)
		switch {
		case err == nil:
			out.Runs = append(out.Runs, run)
			out.Items += items
			out.Slices += int64(len(requests))
			out.Requests = append(out.Requests, requests...)
		case c.All && ok:
			out.Left = append(out.Left, Refusal{run, "it is " + refused.State + "; " + refused.Fix})
		case c.All:
			return out, fmt.Errorf("cancel run %s, after %d others were cancelled: %w", run, len(out.Runs), err)
		default:
			return out, fmt.Errorf("cancel run %s: %w", run, err)
		}
	}
	return out, nil
}

const idsUnderWay = `SELECT id FROM batchrun WHERE state IN ('loading', 'running') ORDER BY id`

func (s Store) runsUnderWay(ctx context.Context) ([]workqueue.RunID, error) {
	runs, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], idsUnderWay)
	if err != nil {
		return nil, fmt.Errorf("look for runs under way: %w", err)
	}
	return runs, nil
}

func (s Store) cancel(
	ctx context.Context, run workqueue.RunID, c *Control,
) (items int64, requests []workqueue.Sent, err error) {
	err = s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockStepsOfRun, run); err != nil {
			return fmt.Errorf("lock steps: %w", err)
		}
		// With the steps and the live slices held, hardly anything can complete the run any more.
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
	if c.Reason != "" {
		detail["reason"] = pg.Plain(c.Reason)
	}
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
