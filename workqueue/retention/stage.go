package retention

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// The rows of a run, in order of deletion. Each statement takes a range, so that no batch reads rows that earlier ones
// deleted: $1 is the run, $2 the step, $3 to $4 the ordinals or blocks. All use a primary key or the index of slices
// by block. The start of the next range after $3 is found in the same way, so few rows cost one lookup.
const (
	nextRunParts = `
SELECT min(ordinal) FROM work_result WHERE run_id = $1 AND step = $2 AND ordinal >= $3`
	nextRunLarge = `
SELECT min(ordinal) FROM large_result WHERE run_id = $1 AND step = $2 AND ordinal >= $3`
	nextRunErrors = `
SELECT min(ordinal) FROM work_error WHERE run_id = $1 AND step = $2 AND ordinal >= $3`
	nextRunSlices = `
SELECT min(block) FROM work_slice WHERE run_id = $1 AND step = $2 AND block >= $3`
	nextRunBlocks = `
SELECT min(block) FROM work_block WHERE run_id = $1 AND step = $2 AND block >= $3`
	nextRunItems = `
SELECT min(ordinal) FROM work_queue WHERE run_id = $1 AND $2::int = 0 AND ordinal >= $3`
	nextRunCorrected = `
SELECT min(ordinal) FROM work_correction WHERE run_id = $1 AND $2::int = 0 AND ordinal >= $3`
	nextRunPlaces = `
SELECT min(ordinal) FROM work_order WHERE run_id = $1 AND $2::int = 0 AND ordinal >= $3`
	nextRunGroups = `
SELECT min(grp) FROM tracker_group WHERE batch_id = $1 AND $2::int = 0 AND grp >= $3`
)

const (
	deleteRunParts = `
DELETE FROM work_result WHERE run_id = $1 AND step = $2 AND ordinal >= $3 AND ordinal < $4`

	// By large_result_place. Pieces are deleted by cascade.
	deleteRunLarge = `
DELETE FROM large_result WHERE run_id = $1 AND step = $2 AND ordinal >= $3 AND ordinal < $4`

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

// Tables with few rows for most runs, $2 rows at a time. By indexes that start with the run.
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

	// Last: until then they block new operations on the run.
	deleteRunSteps = `
DELETE FROM run_step WHERE run_id = $1 AND $2::int > 0`
)

type stage struct {
	next, statement string
	span            int64 // rows per position, about; 0: by number of rows
	steps           bool  // for each step
}

// A block has 17 slices of 500 items, or 8192 of one. Deleting a block costs as much as several items.
const (
	slicesOfBlock = 256
	worthOfBlock  = 16
)

func stages() []stage {
	return []stage{
		{nextRunParts, deleteRunParts, 1, true}, {nextRunLarge, deleteRunLarge, 1, true},
		{nextRunErrors, deleteRunErrors, 1, true}, {nextRunSlices, deleteRunSlices, slicesOfBlock, true},
		{nextRunBlocks, deleteRunBlocks, worthOfBlock, true}, {nextRunItems, deleteRunItems, 1, false},
		{nextRunCorrected, deleteRunCorrected, 1, false}, {nextRunPlaces, deleteRunLanes, 1, false},
		{nextRunGroups, deleteRunGroups, worthOfBlock, false}, {"", deleteRunLines, 0, false},
		{"", deleteRunQuarantine, 0, false}, {"", deleteRunLetters, 0, false}, {"", deleteRunEvents, 0, false},
		{"", deleteRunAdds, 0, false}, {"", deleteRunCorrections, 0, false}, {"", deleteRunTracker, 0, false},
		{"", deleteRunSteps, 0, false},
	}
}

const (
	lockGone = `
SELECT steps, stage, step, position FROM deleted_run WHERE run_id = $1 AND purged_at IS NULL FOR UPDATE`

	moveGone = `
UPDATE deleted_run SET stage = $2, step = $3, position = $4, deleted = deleted + $5,
    purged_at = CASE WHEN $6 THEN tranche_now() END
WHERE run_id = $1`
)

type pieceAt struct {
	steps    int64
	stage    int
	step     int64
	position int64 // in items or blocks
}

// DeletePiece deletes the next batch of a run being deleted: about span rows of one table. It returns how many rows
// that were, and whether nothing is left. Leader work; the batch and its progress are one transaction.
func (s Store) DeletePiece(ctx context.Context, lease workqueue.Lease, run workqueue.RunID, span int64,
) (rows int64, gone bool, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		var at pieceAt
		err := tx.QueryRow(ctx, lockGone, run).Scan(&at.steps, &at.stage, &at.step, &at.position)
		if errors.Is(err, pgx.ErrNoRows) {
			rows, gone = 0, true
			return nil
		}
		if err != nil {
			return err
		}
		all := stages()
		for rows = 0; rows == 0 && at.stage < len(all); {
			if rows, err = at.remove(ctx, tx, run, &all[at.stage], span); err != nil {
				return err
			}
		}
		gone = at.stage == len(all)
		_, err = tx.Exec(ctx, moveGone, run, at.stage, at.step, at.position, rows, gone)
		return err
	})
	return rows, gone, pg.Wrap(err, "delete the rest of run %s", run)
}

func (at *pieceAt) remove(ctx context.Context, tx pgx.Tx, run workqueue.RunID, st *stage, span int64) (int64, error) {
	if st.span == 0 {
		tag, err := tx.Exec(ctx, st.statement, run, span)
		if tag.RowsAffected() < span {
			at.next(st)
		}
		return tag.RowsAffected(), err
	}
	var low *int64
	if err := tx.QueryRow(ctx, st.next, run, at.step, at.position).Scan(&low); err != nil {
		return 0, err
	}
	if low == nil {
		at.next(st)
		return 0, nil
	}
	at.position = min(*low+max(span/st.span, 1), math.MaxInt32) // beyond any item
	tag, err := tx.Exec(ctx, st.statement, run, at.step, *low, at.position)
	return tag.RowsAffected(), err
}

func (at *pieceAt) next(st *stage) {
	at.position = 0
	if at.step++; !st.steps || at.step >= at.steps {
		at.stage, at.step = at.stage+1, 0
	}
}

// goneKept is how long a deleted run answers "deleted".
const goneKept = 400 * 24 * time.Hour

const forgetGone = `
DELETE FROM deleted_run WHERE purged_at < tranche_now() - $1::interval`

// ForgetGone deletes the records of runs deleted long ago: then they are like runs that never existed. Leader work.
func (s Store) ForgetGone(ctx context.Context, lease workqueue.Lease) error {
	_, err := session.New(s.db).ExecAsLeader(ctx, lease, forgetGone, goneKept)
	return pg.Wrap(err, "forget deleted runs")
}
