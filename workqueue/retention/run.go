package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// A finished run is deleted in two moves. The first takes its row out of batchrun and leaves one in deleted_run
// instead, in one transaction: from then on no one finds the run, and no one can begin anything with it. The second
// deletes what else there is of it, in small pieces, each in a transaction that also says how far it is; whoever leads
// goes on where the leader before has stopped. See retention_stage.go.

// retentionSettle is how long after its end a run may not be deleted, whatever its limits say.
const retentionSettle = time.Minute

const (
	// Only runs that were not measured since their last generation, and always the same first.
	unmeasuredRuns = `
SELECT r.id FROM batchrun r LEFT JOIN retention_size z ON z.run_id = r.id AND z.generation = r.generation
WHERE r.state IN ('completed', 'cancelled') AND z.run_id IS NULL ORDER BY r.id LIMIT $1`

	// One that runs again meanwhile is left out.
	runsToSize = `
WITH unknown AS MATERIALIZED (
    SELECT r.id, r.generation, r.items, (SELECT count(*) FROM run_step st WHERE st.run_id = r.id) AS steps
    FROM batchrun r WHERE r.id = ANY ($1) AND r.state IN ('completed', 'cancelled') ORDER BY r.id)
INSERT INTO retention_size (run_id, generation, bytes)`

	writeSizes = `
ON CONFLICT (run_id) DO UPDATE SET generation = excluded.generation, bytes = excluded.bytes`

	// Roughly: what items, results and their rows take up in tables and indexes, what was corrected, and half a kilobyte
	// a slice. Blocks have the sums.
	measureRuns = runsToSize + `
SELECT s.id, s.generation, 4096 + s.items * 150 + s.items * s.steps * 150
    + coalesce((SELECT sum(b.result_bytes) + sum(b.payload_bytes) FILTER (WHERE b.step = 0) FROM work_block b
                WHERE b.run_id = s.id), 0)
    + coalesce((SELECT sum(150 + octet_length(c.payload)) FROM work_correction c WHERE c.run_id = s.id), 0)
    + 500 * (SELECT count(*) FROM work_slice w WHERE w.run_id = s.id)
FROM unknown s` + writeSizes

	// Rows and indexes as above, and nothing for what is in them: a guess that is too large deletes runs too early.
	guessRun = runsToSize + `
SELECT s.id, s.generation, 4096 + s.items * (150 + s.steps * 150) FROM unknown s` + writeSizes + `
RETURNING bytes`

	dropSizes = `
DELETE FROM retention_size z WHERE NOT EXISTS (SELECT FROM batchrun r WHERE r.id = z.run_id)`

	// The oldest, but a run only after those that carry it on, with which it is one to reports. What follows says again
	// what makes a run one that may go.
	runsPastLimits = `
SELECT r.id FROM batchrun r
WHERE r.state IN ('completed', 'cancelled') AND (r.sealed_at IS NOT NULL OR r.opened) AND r.finished_at < $1
    AND r.finished_at < tranche_now() - $3::interval AND r.id <> ALL ($4::uuid[])
    AND NOT EXISTS (SELECT FROM batchrun o WHERE o.from_run = r.id)
ORDER BY r.finished_at, r.id LIMIT $2`

	// As everybody does who begins something with a run: its steps first. Whoever holds one of them is at work on it, and
	// it is left alone.
	lockStepsToDelete = `
WITH free AS MATERIALIZED (SELECT step FROM run_step WHERE run_id = $1 ORDER BY step FOR UPDATE SKIP LOCKED)
SELECT count(*), (SELECT count(*) FROM run_step WHERE run_id = $1) FROM free`

	// An event that was not published yet names the run. What people said of its conditions goes with it.
	takeRun = `
WITH free AS MATERIALIZED (SELECT id FROM batchrun WHERE id = $1 FOR UPDATE SKIP LOCKED),
taken AS (
    DELETE FROM batchrun r USING free
    WHERE r.id = free.id AND r.state IN ('completed', 'cancelled') AND (r.sealed_at IS NOT NULL OR r.opened)
        AND r.finished_at < coalesce($2::timestamptz, 'infinity')
        AND r.finished_at < tranche_now() - $4::interval
        AND NOT EXISTS (SELECT FROM run_event e WHERE e.run_id = r.id AND e.published_at IS NULL)
        AND NOT EXISTS (SELECT FROM batchrun o WHERE o.from_run = r.id)
    RETURNING r.*),
marks AS (DELETE FROM health_ack m USING taken t WHERE m.subject = t.id::text)
INSERT INTO deleted_run (run_id, name, plan, items, steps, generation, finished_at, why, deleted_by)
SELECT t.id, coalesce(t.name, ''), t.plan, t.items, $5, t.generation, t.finished_at, $3, $6 FROM taken t
RETURNING name, plan, items, generation, finished_at`
)

// MeasureRuns estimates the size of finished runs that were not measured yet, up to a number of them, and returns which
// it took, also when it fails. It reads all blocks and slices of theirs, which may take longer than a transaction has:
// see [TookTooLong] and [Store.GuessRun]. Leader work.
func (s Store) MeasureRuns(ctx context.Context, lease workqueue.Lease, limit int) (took []workqueue.RunID, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
		if took, err = pg.Collect(ctx, tx, pgx.RowTo[workqueue.RunID], unmeasuredRuns, limit); err != nil || len(took) == 0 {
			return err
		}
		_, err = tx.Exec(ctx, measureRuns, took)
		return err
	})
	if err != nil {
		return took, fmt.Errorf("measure finished runs: %w", err)
	}
	return took, nil
}

// GuessRun gives a finished run a size without reading any of its rows, and returns it: 0, and nothing has happened,
// when the run is not finished any more. It counts like one that was measured. Leader work.
func (s Store) GuessRun(ctx context.Context, lease workqueue.Lease, run workqueue.RunID) (bytes int64, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, guessRun, []workqueue.RunID{run}).Scan(&bytes)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("guess the size of run %s: %w", run, err)
	}
	return bytes, nil
}

// DropSizes forgets the sizes of runs that were deleted. Leader work.
func (s Store) DropSizes(ctx context.Context, lease workqueue.Lease) error {
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, dropSizes)
		return err
	})
	if err != nil {
		return fmt.Errorf("forget the sizes of deleted runs: %w", err)
	}
	return nil
}

// RunsPastLimits returns finished runs that ended before a time, the oldest first, without those that are left out.
func (s Store) RunsPastLimits(
	ctx context.Context, before time.Time, limit int, without []workqueue.RunID,
) ([]workqueue.RunID, error) {
	if without == nil {
		without = []workqueue.RunID{}
	}
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	runs, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], runsPastLimits, before, limit, retentionSettle,
		without)
	if err != nil {
		return nil, fmt.Errorf("look for runs that are past their limits: %w", err)
	}
	return runs, nil
}

// DeleteRun makes a finished run one that is being deleted: no one finds it any more. It reports false, and has done
// nothing, when the run is not finished, ended too late, or someone is at work on it. Leader work; [Store.DeletePiece]
// deletes what there is of it.
func (s Store) DeleteRun(ctx context.Context, lease workqueue.Lease, run workqueue.RunID, before time.Time, why string,
) (deleted bool, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
		deleted, err = takeToDelete(ctx, tx, run, before, why)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("delete run %s: %w", run, err)
	}
	return deleted, nil
}

func takeToDelete(ctx context.Context, tx pgx.Tx, run workqueue.RunID, before time.Time, why string) (bool, error) {
	var free, steps int
	if err := tx.QueryRow(ctx, lockStepsToDelete, run).Scan(&free, &steps); err != nil || free < steps {
		return false, err
	}
	taken, err := takeRunRow(ctx, tx, run, &before, why, "", steps)
	if err != nil || taken == nil {
		return false, err
	}
	return true, ledger.AuditChange(ctx, tx, ledger.Action{Actor: workqueue.Engine, Name: "delete", Run: run,
		Before: taken, Detail: map[string]any{"why": why}})
}

// takeRunRow moves a run's row from batchrun to deleted_run, and returns what it was; nil when it may not go.
func takeRunRow(ctx context.Context, tx pgx.Tx, run workqueue.RunID, before *time.Time, why, by string, steps int,
) (map[string]any, error) {
	var name, plan string
	var items int64
	var gen workqueue.Generation
	var finished time.Time
	err := tx.QueryRow(ctx, takeRun, run, before, why, retentionSettle, steps, by).
		Scan(&name, &plan, &items, &gen, &finished)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return map[string]any{"name": name, "plan": plan, "items": items, "generation": gen, "finished_at": finished}, nil
}

const (
	goingRuns = `
SELECT ` + inspect.GoneFields + ` FROM deleted_run WHERE purged_at IS NULL AND run_id <> ALL ($2::uuid[])
ORDER BY deleted_at, run_id LIMIT $1`
)

// GoingRuns returns the runs that are being deleted, those first that were deleted first, without those that are left
// out.
func (s Store) GoingRuns(ctx context.Context, limit int, without ...workqueue.RunID) ([]inspect.GoneRun, error) {
	if without == nil {
		without = []workqueue.RunID{}
	}
	return inspect.New(s.db).GoneRuns(ctx, goingRuns, limit, without)
}
