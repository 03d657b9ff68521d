package retention

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// A finished run is deleted in two steps. The first moves its row from batchrun to deleted_run in one transaction:
// then the run cannot be found or used. The second deletes its other rows in small batches, each in a
// transaction that also saves the progress; the next leader continues there. See stage.go.

// retentionSettle is how long after its end a run may not be deleted, regardless of limits.
const retentionSettle = time.Minute

const (
	// Only runs not measured since their last generation, always in the same order: where they have a limit, or their
	// namespace a quota.
	unmeasuredRuns = `
SELECT r.id FROM batchrun r LEFT JOIN retention_size z ON z.run_id = r.id AND z.generation = r.generation
WHERE r.state IN ('completed', 'cancelled') AND z.run_id IS NULL AND (
    EXISTS (SELECT FROM retention k WHERE k.kind = 'runs' AND num_nonnulls(k.age, k.max_count, k.max_bytes) > 0)
    OR r.namespace = ANY (ARRAY(SELECT n.name FROM namespace n WHERE n.max_bytes IS NOT NULL)))
ORDER BY r.id LIMIT $1`

	// A run restarted meanwhile is left out.
	runsToSize = `
WITH unknown AS MATERIALIZED (
    SELECT r.id, r.generation, r.items, (SELECT count(*) FROM run_step st WHERE st.run_id = r.id) AS steps
    FROM batchrun r WHERE r.id = ANY ($1) AND r.state IN ('completed', 'cancelled') ORDER BY r.id)
INSERT INTO retention_size (run_id, generation, bytes)`

	writeSizes = `
ON CONFLICT (run_id) DO UPDATE SET generation = excluded.generation, bytes = excluded.bytes`

	// Approximate: items, results and their rows and index entries, corrections, and half a kilobyte a slice.
	measureRuns = runsToSize + `
SELECT s.id, s.generation, 4096 + s.items * 150 + s.items * s.steps * 150
    + coalesce((SELECT sum(b.result_bytes) + sum(b.payload_bytes) FILTER (WHERE b.step = 0) FROM work_block b
                WHERE b.run_id = s.id), 0)
    + coalesce((SELECT sum(150 + octet_length(c.payload)) FROM work_correction c WHERE c.run_id = s.id), 0)
    + 500 * (SELECT count(*) FROM work_slice w WHERE w.run_id = s.id)
FROM unknown s` + writeSizes

	// Rows and indexes as above, without contents: a guess that is too large would delete runs too early.
	guessRun = runsToSize + `
SELECT s.id, s.generation, 4096 + s.items * (150 + s.steps * 150) FROM unknown s` + writeSizes + `
RETURNING bytes`

	dropSizes = `
DELETE FROM retention_size z WHERE NOT EXISTS (SELECT FROM batchrun r WHERE r.id = z.run_id)`

	// The oldest, but a run only after those that continue it, with which reports combine it.
	runsPastLimits = `
SELECT r.id FROM batchrun r
WHERE r.state IN ('completed', 'cancelled') AND (r.sealed_at IS NOT NULL OR r.opened) AND r.finished_at < $1
    AND r.finished_at < tranche_now() - $3::interval AND r.id <> ALL ($4::uuid[])
    AND NOT EXISTS (SELECT FROM batchrun o WHERE o.from_run = r.id)
ORDER BY r.finished_at, r.id LIMIT $2`

	// Locks the steps first, like every operation on a run. If one is locked, the run is in use.
	lockStepsToDelete = `
WITH free AS MATERIALIZED (SELECT step FROM run_step WHERE run_id = $1 ORDER BY step FOR UPDATE SKIP LOCKED)
SELECT count(*), (SELECT count(*) FROM run_step WHERE run_id = $1) FROM free`

	// It changes with each operation on run r. audit_log_run.
	runState = `(
    SELECT concat_ws('-', r.generation, count(*), coalesce(max(a.id), 0)) FROM audit_log a WHERE a.run_id = r.id)`

	// An unpublished event names the run, so it stays. Marks of its conditions are deleted with it. A run past its limits
	// must be the archived one ($7).
	takeRun = `
WITH free AS MATERIALIZED (SELECT id FROM batchrun WHERE id = $1 FOR UPDATE SKIP LOCKED),
taken AS (
    DELETE FROM batchrun r USING free
    WHERE r.id = free.id AND r.state IN ('completed', 'cancelled') AND (r.sealed_at IS NOT NULL OR r.opened)
        AND r.finished_at < coalesce($2::timestamptz, 'infinity')
        AND r.finished_at < tranche_now() - $4::interval
        AND NOT EXISTS (SELECT FROM run_event e WHERE e.run_id = r.id AND e.published_at IS NULL)
        AND NOT EXISTS (SELECT FROM batchrun o WHERE o.from_run = r.id)
        AND ($7::text IS NULL OR $7 = ` + runState + ` OR NOT EXISTS (SELECT FROM archive))
    RETURNING r.*),
marks AS (DELETE FROM health_ack m USING taken t WHERE m.subject = t.id::text)
INSERT INTO deleted_run (run_id, name, plan, items, steps, generation, finished_at, why, deleted_by)
SELECT t.id, coalesce(t.name, ''), t.plan, t.items, $5, t.generation, t.finished_at, $3, $6 FROM taken t
RETURNING name, plan, items, generation, finished_at`
)

// MeasureRuns estimates the size of up to limit finished runs not measured so far, and returns which, also after an
// error. If that exceeds a transaction's time: see [TookTooLong] and [Store.GuessRun]. Leader work.
func (s Store) MeasureRuns(ctx context.Context, lease workqueue.Lease, limit int) (took []workqueue.RunID, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
		if took, err = pg.Collect(ctx, tx, pgx.RowTo[workqueue.RunID], unmeasuredRuns, limit); err != nil || len(took) == 0 {
			return err
		}
		_, err = tx.Exec(ctx, measureRuns, took)
		return err
	})
	return took, pg.Wrap(err, "measure finished runs")
}

// GuessRun sets and returns a finished run's size without reading rows, or 0 if it is not finished. Leader work.
func (s Store) GuessRun(ctx context.Context, lease workqueue.Lease, run workqueue.RunID) (bytes int64, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, guessRun, []workqueue.RunID{run}).Scan(&bytes)
		return pg.NoRow(err, nil)
	})
	return bytes, pg.Wrap(err, "guess the size of run %s", run)
}

// DropSizes deletes the sizes of deleted runs. Leader work.
func (s Store) DropSizes(ctx context.Context, lease workqueue.Lease) error {
	_, err := session.New(s.db).ExecAsLeader(ctx, lease, dropSizes)
	return pg.Wrap(err, "forget the sizes of deleted runs")
}

// RunsPastLimits returns finished runs that ended before a time, oldest first, except some.
func (s Store) RunsPastLimits(
	ctx context.Context, before time.Time, limit int, without []workqueue.RunID,
) ([]workqueue.RunID, error) {
	without = append([]workqueue.RunID{}, without...) // not null
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	runs, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], runsPastLimits, before, limit, retentionSettle,
		without)
	return runs, pg.Wrap(err, "find runs that are past their limits")
}

// DeleteRun marks a finished run as being deleted: it can no longer be found. It returns false without effect if the
// run is not finished, ended too late, is in use, or, once there is an archive, is not in it in this state. Leader
// work; [Store.DeletePiece] deletes its rows.
func (s Store) DeleteRun(ctx context.Context, lease workqueue.Lease, run workqueue.RunID, before time.Time,
	why, archived string) (deleted bool, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
		deleted, err = takeToDelete(ctx, tx, run, before, why, archived)
		return err
	})
	return deleted && err == nil, pg.Wrap(err, "delete run %s", run)
}

func takeToDelete(ctx context.Context, tx pgx.Tx, run workqueue.RunID, before time.Time, why, archived string,
) (bool, error) {
	var free, steps int
	if err := tx.QueryRow(ctx, lockStepsToDelete, run).Scan(&free, &steps); err != nil || free < steps {
		return false, err
	}
	taken, err := takeRunRow(ctx, tx, run, &before, why, "", steps, &archived)
	if err != nil || taken == nil {
		return false, err
	}
	return true, ledger.AuditChange(ctx, tx, ledger.Action{Actor: workqueue.Engine, Name: "delete", Run: run,
		Before: taken, Detail: map[string]any{"why": why}})
}

// takeRunRow moves a run's row from batchrun to deleted_run, and returns its values; nil if it must stay.
func takeRunRow(ctx context.Context, tx pgx.Tx, run workqueue.RunID, before *time.Time, why, by string, steps int,
	archived *string) (map[string]any, error) {
	var name, plan string
	var items int64
	var gen workqueue.Generation
	var finished time.Time
	err := tx.QueryRow(ctx, takeRun, run, before, why, retentionSettle, steps, by, archived).
		Scan(&name, &plan, &items, &gen, &finished)
	if err != nil {
		return nil, pg.NoRow(err, nil)
	}
	return map[string]any{"name": name, "plan": plan, "items": items, "generation": gen, "finished_at": finished}, nil
}

const goingRuns = `
SELECT ` + inspect.GoneFields + ` FROM deleted_run WHERE purged_at IS NULL AND run_id <> ALL ($2::uuid[])
ORDER BY deleted_at, run_id LIMIT $1`

// GoingRuns returns the runs being deleted, oldest deletion first, except some.
func (s Store) GoingRuns(ctx context.Context, limit int, without ...workqueue.RunID) ([]inspect.GoneRun, error) {
	return inspect.New(s.db).GoneRuns(ctx, goingRuns, limit, append([]workqueue.RunID{}, without...)) // not null
}
