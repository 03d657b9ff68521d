// Package start loads the items of a run and starts it, and stores plans and their versions. A load is all or
// nothing, also if its node dies. Memory does not grow with the number of items.
package start

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Store starts runs. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// A failed load is deleted in two steps: its row changes state, which stops its writers; then items and row are
// deleted, a bounded number in each transaction. Each statement excludes runs that were sealed or opened.
const (
	// lockLoad waits for writers of the load and keeps new ones out.
	lockLoad = `SELECT sealed_at IS NOT NULL OR opened FROM batchrun WHERE id = $1 FOR UPDATE`

	giveUpLoad = `
UPDATE batchrun SET state = 'cancelled', finished_at = tranche_now()
WHERE id = $1 AND state = 'loading' AND sealed_at IS NULL AND NOT opened`

	// The end of the next batch to delete, after those already deleted, so that no batch reads their dead rows. Separate,
	// since a self-join is quadratic without statistics. By the primary key.
	nextItems = `
SELECT max(ordinal) FROM (
    SELECT ordinal FROM work_queue WHERE run_id = $1 AND ordinal > $2 ORDER BY ordinal LIMIT $3) n`

	deleteItems = `
DELETE FROM work_queue WHERE run_id = $1 AND ordinal > $2 AND ordinal <= $3
  AND EXISTS (SELECT 1 FROM batchrun WHERE id = $1 AND state = 'cancelled' AND sealed_at IS NULL AND NOT opened)`

	// The same for the lanes of items.
	nextPlaces = `
SELECT max(ordinal) FROM (
    SELECT ordinal FROM work_order WHERE run_id = $1 AND ordinal > $2 ORDER BY ordinal LIMIT $3) n`

	deletePlaces = `
DELETE FROM work_order WHERE run_id = $1 AND ordinal > $2 AND ordinal <= $3
  AND EXISTS (SELECT 1 FROM batchrun WHERE id = $1 AND state = 'cancelled' AND sealed_at IS NULL AND NOT opened)`

	deleteLoad = `
WITH gone AS (
    DELETE FROM batchrun WHERE id = $1 AND state = 'cancelled' AND sealed_at IS NULL AND NOT opened RETURNING id)
DELETE FROM run_step s USING gone WHERE s.run_id = gone.id`

	// Loads whose node died, also while deleting them.
	abandonedLoads = `
SELECT r.id FROM batchrun r
WHERE r.sealed_at IS NULL AND NOT r.opened AND r.state IN ('loading', 'cancelled') AND NOT EXISTS (
    SELECT 1 FROM node_session n
    WHERE n.id = r.loader_session AND n.ended_at IS NULL AND n.expires_at > tranche_now())`
)

// Rows deleted by one transaction, adjusted to its duration: payloads vary in size.
const (
	firstClear = 1000
	mostClear  = 50_000
	// clearMost is the longest time that one such transaction should take.
	clearMost = time.Second
)

// inTransaction runs a function in a transaction, which may check a lease.
type inTransaction func(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error

// ClearLoad deletes the row and items of a failed load. It leaves a sealed run alone and reports it. A run that does
// not exist counts as cleared.
func (s Store) ClearLoad(ctx context.Context, run workqueue.RunID) (sealed bool, err error) {
	return clearLoad(ctx, run, s.db.InTx)
}

func clearLoad(ctx context.Context, run workqueue.RunID, do inTransaction) (sealed bool, err error) {
	err = do(ctx, func(ctx context.Context, tx pgx.Tx) error {
		sealed, err = giveUp(ctx, tx, run)
		return err
	})
	if err == nil && !sealed {
		err = clearRows(ctx, run, do, nextItems, deleteItems)
	}
	if err == nil && !sealed {
		err = clearRows(ctx, run, do, nextPlaces, deletePlaces)
	}
	if err == nil && !sealed {
		err = do(ctx, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, deleteLoad, run)
			return err
		})
	}
	if err != nil {
		return false, fmt.Errorf("clear the load of run %s: %w", run, err)
	}
	return sealed, nil
}

// clearRows deletes rows of a run in batches. One that took too long was rolled back, and is retried smaller.
func clearRows(ctx context.Context, run workqueue.RunID, do inTransaction, next, remove string) error {
	after, rows := workqueue.Ordinal(-1), firstClear
	for {
		var last *workqueue.Ordinal
		began := time.Now()
		err := do(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, next, run, after, rows).Scan(&last); err != nil || last == nil {
				return err
			}
			_, err := tx.Exec(ctx, remove, run, after, *last)
			return err
		})
		switch took := time.Since(began); {
		case err != nil && tooLong(err) && rows > 1 && ctx.Err() == nil:
			rows = max(rows/4, 1)
			continue
		case err != nil || last == nil:
			return err
		case took > clearMost:
			rows = max(rows/2, 1)
		case took < clearMost/4:
			rows = min(rows*2, mostClear)
		}
		after = *last
	}
}

// tooLong reports whether a transaction was interrupted by its time limit, here or in the database (57014).
func tooLong(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && pg.Code == "57014"
}

func giveUp(ctx context.Context, tx pgx.Tx, run workqueue.RunID) (sealed bool, err error) {
	err = tx.QueryRow(ctx, lockLoad, run).Scan(&sealed)
	if err != nil || sealed {
		return sealed, pg.NoRow(err, nil)
	}
	_, err = tx.Exec(ctx, giveUpLoad, run)
	return false, err
}

// ClearAbandonedLoads deletes runs whose loading node died before the seal, and returns them. An error for one does
// not block the rest. It runs until nothing remains. Leader work; each transaction checks the lease.
func (s Store) ClearAbandonedLoads(
	ctx context.Context, lease workqueue.Lease,
) (cleared []workqueue.RunID, failed error) {
	abandoned, err := s.abandonedLoads(ctx)
	if err != nil {
		return nil, fmt.Errorf("find abandoned loads: %w", err)
	}
	do := func(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
		return session.New(s.db).AsLeader(ctx, lease, f)
	}
	for _, run := range abandoned {
		sealed, err := clearLoad(ctx, run, do)
		if err != nil && (errors.Is(err, workqueue.ErrNotLeader) || ctx.Err() != nil) {
			return cleared, errors.Join(failed, err)
		}
		failed = errors.Join(failed, err)
		if err == nil && !sealed {
			cleared = append(cleared, run)
		}
	}
	return cleared, failed
}

func (s Store) abandonedLoads(ctx context.Context) ([]workqueue.RunID, error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	return pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], abandonedLoads)
}

// planKind is how plans are stored: a row for each version; the newest is locked, deleted or not.
func planKind() ledger.Kind {
	return ledger.Kind{
		Name: "plan",
		Hold: `
SELECT version, 'active', deleted_at IS NOT NULL, spec = $2::jsonb AND source = $3, spec, NULL::timestamptz, created_by,
    created_at, namespace
FROM plan WHERE name = $1
ORDER BY version DESC
LIMIT 1
FOR NO KEY UPDATE`,
	}
}

const (
	insertPlan = `
INSERT INTO plan (name, version, spec, source, created_by, namespace) VALUES ($1, $2, $3, $4, $5, $6)
RETURNING version, created_at`

	deletePlan = `UPDATE plan SET deleted_at = tranche_now() WHERE name = $1 AND deleted_at IS NULL`
)

// ApplyPlan saves a plan under the next version of its name. Numbers are never reused.
func (s Store) ApplyPlan(
	ctx context.Context, doc workqueue.Document, actor string,
) (workqueue.AppliedDocument, error) {
	return planKind().Apply(ctx, s.db, &doc, actor,
		func(ctx context.Context, tx pgx.Tx, was *ledger.Held, out *workqueue.AppliedDocument) error {
			return tx.QueryRow(ctx, insertPlan, doc.Name, was.Version+1, doc.Spec, doc.Source, out.ChangedBy,
				workqueue.Into(ctx)).
				Scan(&out.Version, &out.ChangedAt)
		})
}

// DeletePlan deletes all versions of a plan. Runs keep what they started with. Applied again, it has the next version.
func (s Store) DeletePlan(ctx context.Context, name, actor string) (workqueue.ControlledDocument, error) {
	return planKind().Set(ctx, s.db, name, workqueue.DocumentDeleted, actor,
		func(ctx context.Context, tx pgx.Tx, _ *ledger.Held, _ *workqueue.ControlledDocument) error {
			_, err := tx.Exec(ctx, deletePlan, name)
			return err
		})
}
