package retention

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
)

// What there is of a run, in the order in which it is deleted. Each statement takes a range, so that no piece reads
// what the pieces before it have deleted: $1 is the run, $2 the step, $3 to $4 the ordinals, or blocks. All of them go
// by a primary key or by the index of slices by their block.
const (
	deleteRunParts = `
DELETE FROM work_part WHERE run_id = $1 AND step = $2 AND ordinal >= $3 AND ordinal < $4`

	// By work_large_place. What they consist of goes with them.
	deleteRunLarge = `
DELETE FROM work_large WHERE run_id = $1 AND step = $2 AND ordinal >= $3 AND ordinal < $4`

	deleteRunErrors = `
DELETE FROM work_error WHERE run_id = $1 AND step = $2 AND ordinal >= $3 AND ordinal < $4`

	deleteRunSlices = `
DELETE FROM work_slice WHERE run_id = $1 AND step = $2 AND block >= $3 AND block < $4`

	deleteRunBlocks = `
DELETE FROM work_block WHERE run_id = $1 AND step = $2 AND block >= $3 AND block < $4`

	deleteRunItems = `
DELETE FROM work_queue WHERE run_id = $1 AND $2::int = 0 AND ordinal >= $3 AND ordinal < $4`

	deleteRunCorrected = `
DELETE FROM work_correction WHERE run_id = $1 AND $2::int = 0 AND ordinal >= $3 AND ordinal < $4`

	deleteRunLanes = `
DELETE FROM work_order WHERE run_id = $1 AND $2::int = 0 AND ordinal >= $3 AND ordinal < $4`

	deleteRunGroups = `
DELETE FROM tracker_group WHERE batch_id = $1 AND $2::int = 0 AND grp >= $3 AND grp < $4`
)

// What is little for most runs is deleted a number of rows at a time: $2. Each goes by an index that begins with a run.
const (
	deleteRunQuarantine = `
DELETE FROM quarantine WHERE id = ANY (ARRAY(SELECT id FROM quarantine WHERE run_id = $1 LIMIT $2))`

	deleteRunLetters = `
DELETE FROM dead_letter WHERE id = ANY (ARRAY(SELECT id FROM dead_letter WHERE run_id = $1 LIMIT $2))`

	deleteRunEvents = `
DELETE FROM run_event WHERE id = ANY (ARRAY(SELECT id FROM run_event WHERE run_id = $1 LIMIT $2))`

	deleteRunAdds = `
DELETE FROM run_add WHERE run_id = $1 AND key = ANY (ARRAY(SELECT key FROM run_add WHERE run_id = $1 LIMIT $2))`

	deleteRunCorrections = `
DELETE FROM run_correction
WHERE run_id = $1 AND generation = ANY (ARRAY(SELECT generation FROM run_correction WHERE run_id = $1 LIMIT $2))`

	deleteRunLines = `
DELETE FROM work_lane WHERE run_id = $1 AND lane = ANY (ARRAY(SELECT lane FROM work_lane WHERE run_id = $1 LIMIT $2))`

	deleteRunTracker = `
DELETE FROM tracker_batch WHERE id = $1 AND $2::int > 0`

	// Last: until then they keep out who would begin something with the run.
	deleteRunSteps = `
DELETE FROM run_step WHERE run_id = $1 AND $2::int > 0`
)

// stage is a table of which a run's rows are deleted.
type stage struct {
	statement string
	unit      int64 // items of one position: 1, or those of a block; 0: by a number of rows
	steps     bool  // for each step
}

func stages() []stage {
	return []stage{
		{deleteRunParts, 1, true}, {deleteRunLarge, 1, true}, {deleteRunErrors, 1, true},
		{deleteRunSlices, bitfield.Size, true},
		{deleteRunBlocks, bitfield.Size, true}, {deleteRunItems, 1, false}, {deleteRunCorrected, 1, false},
		{deleteRunLanes, 1, false},
		{deleteRunGroups, bitfield.Size, false}, {deleteRunLines, 0, false},
		{deleteRunQuarantine, 0, false}, {deleteRunLetters, 0, false}, {deleteRunEvents, 0, false},
		{deleteRunAdds, 0, false}, {deleteRunCorrections, 0, false}, {deleteRunTracker, 0, false}, {deleteRunSteps, 0, false},
	}
}

const (
	lockGone = `
SELECT items, steps, stage, step, position FROM retention_run WHERE run_id = $1 AND gone_at IS NULL FOR UPDATE`

	moveGone = `
UPDATE retention_run SET stage = $2, step = $3, position = $4, deleted = deleted + $5,
    gone_at = CASE WHEN $6 THEN clock_timestamp() END
WHERE run_id = $1`
)

// pieceAt is how far the deletion of a run has come.
type pieceAt struct {
	items, steps int64
	stage        int
	step         int64
	position     int64 // in items
}

// DeletePiece deletes the next piece of a run that is being deleted: what there is in one table of span items, or of
// one block when that is more, or span rows. It returns how many rows that were, and whether the run is gone now.
// Leader work; the piece and how far it got are one transaction.
func (s Store) DeletePiece(ctx context.Context, lease workqueue.Lease, run workqueue.RunID, span int64,
) (rows int64, gone bool, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		var at pieceAt
		err := tx.QueryRow(ctx, lockGone, run).Scan(&at.items, &at.steps, &at.stage, &at.step, &at.position)
		if errors.Is(err, pgx.ErrNoRows) {
			rows, gone = 0, true
			return nil
		}
		if err != nil {
			return err
		}
		all := stages()
		if rows, err = at.remove(ctx, tx, run, &all[at.stage], span); err != nil {
			return err
		}
		gone = at.stage == len(all)
		_, err = tx.Exec(ctx, moveGone, run, at.stage, at.step, at.position, rows, gone)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("delete what is left of run %s: %w", run, err)
	}
	return rows, gone, nil
}

// remove deletes a piece and moves on behind it.
func (at *pieceAt) remove(ctx context.Context, tx pgx.Tx, run workqueue.RunID, st *stage, span int64) (int64, error) {
	if st.unit == 0 {
		tag, err := tx.Exec(ctx, st.statement, run, span)
		if tag.RowsAffected() < span {
			at.next(st)
		}
		return tag.RowsAffected(), err
	}
	low := at.position / st.unit
	high := low + max(span/st.unit, 1)
	at.position = high * st.unit
	last := at.position >= at.items
	if last {
		high = math.MaxInt32 // whatever there may be
	}
	tag, err := tx.Exec(ctx, st.statement, run, at.step, low, high)
	if last {
		at.next(st)
	}
	return tag.RowsAffected(), err
}

func (at *pieceAt) next(st *stage) {
	at.position = 0
	if at.step++; !st.steps || at.step >= at.steps {
		at.stage, at.step = at.stage+1, 0
	}
}

// goneKept is how long it is known of a run that it was deleted.
const goneKept = 400 * 24 * time.Hour

const forgetGone = `
DELETE FROM retention_run WHERE gone_at < clock_timestamp() - $1::interval`

// ForgetGone forgets runs that were deleted long ago: from then on they are like runs that never were. Leader work.
func (s Store) ForgetGone(ctx context.Context, lease workqueue.Lease) error {
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, forgetGone, goneKept)
		return err
	})
	if err != nil {
		return fmt.Errorf("forget deleted runs: %w", err)
	}
	return nil
}
