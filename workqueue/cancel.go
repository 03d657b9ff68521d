package workqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// Cancelled is what a cancel stopped.
type Cancelled struct {
	Items  int64  // items without an outcome
	Slices []Sent // requests that may still lie in the work stream
}

const (
	// Held, no claim of the run can be under way.
	lockStepsOfRun = `SELECT step FROM run_step WHERE run_id = $1 ORDER BY step FOR UPDATE`

	cancelSlices = `
UPDATE work_slice
SET state = 'cancelled', ended_at = clock_timestamp(), error_code = 'cancelled', error_message = 'the run was cancelled'
WHERE run_id = $1 AND state IN ('scheduled', 'claimed', 'sent')
RETURNING id, coalesce(stream_seq, 0), coalesce(pipe_epoch, 0)`

	cancelRun = `
UPDATE batchrun r SET state = 'cancelled', finished_at = clock_timestamp(), done = c.done, failed = c.failed
FROM (SELECT coalesce(sum(bit_count(done)), 0) AS done, coalesce(sum(bit_count(failed)), 0) AS failed
      FROM work_block WHERE run_id = $1 AND step = 0) c
WHERE r.id = $1 AND r.state = 'running'
RETURNING r.generation, r.items - c.done - c.failed`
)

// Cancel stops a run: nothing of it is claimed any more, live slices end, late replies are stale. What was recorded
// stays.
func (s *Store) Cancel(ctx context.Context, run RunID, actor string) (Cancelled, error) {
	var out Cancelled
	err := s.inTxWithin(ctx, operatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		out = Cancelled{}
		if _, err := tx.Exec(ctx, lockStepsOfRun, run); err != nil {
			return fmt.Errorf("lock steps: %w", err)
		}
		// With the steps and the live slices held, hardly anything can complete the run any more.
		if _, err := lockSlices(ctx, tx, slicesOfRun, run); err != nil {
			return err
		}
		if err := mayCancel(ctx, tx, run); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, cancelSlices, run)
		if err != nil {
			return fmt.Errorf("end slices: %w", err)
		}
		out.Slices, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Sent])
		if err != nil {
			return fmt.Errorf("end slices: %w", err)
		}
		if err := tracker.Cancel(ctx, tx, uuid.UUID(run)); err != nil {
			return err
		}
		var gen Generation
		err = tx.QueryRow(ctx, cancelRun, run).Scan(&gen, &out.Items)
		if errors.Is(err, pgx.ErrNoRows) {
			return &StateError{run, "just completed", "cancel", "there is nothing to stop"}
		}
		if err != nil {
			return fmt.Errorf("end run: %w", err)
		}
		err = audit(ctx, tx, actor, "cancel", run, map[string]any{"items_without_outcome": out.Items})
		if err != nil {
			return err
		}
		return addEvent(ctx, tx, run, gen, EventCancelled, map[string]any{"items_without_outcome": out.Items})
	})
	if err != nil {
		return Cancelled{}, fmt.Errorf("cancel run %s: %w", run, err)
	}
	return out, nil
}

func mayCancel(ctx context.Context, tx pgx.Tx, run RunID) error {
	var state string
	var gen Generation
	err := tx.QueryRow(ctx, runState, run).Scan(&state, &gen)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ErrNotFound
	case err != nil:
		return err
	case state == "loading":
		return &StateError{run, state, "cancel", "stop the upload, and it is cleared away"}
	case state != "running":
		return &StateError{run, state, "cancel", "there is nothing to stop"}
	}
	return nil
}
