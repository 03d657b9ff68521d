package workqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A load that failed or died is taken back in two moves: its row changes state, which shuts out writers that are still
// at it, and then items and row are deleted, a bounded number in each transaction. A run that was sealed, or opened, is
// never touched: each statement says so itself.
const (
	// lockLoad waits for writers of the load and keeps new ones out.
	lockLoad = `SELECT sealed_at IS NOT NULL OR opened FROM batchrun WHERE id = $1 FOR UPDATE`

	giveUpLoad = `
UPDATE batchrun SET state = 'cancelled', finished_at = clock_timestamp()
WHERE id = $1 AND state = 'loading' AND sealed_at IS NULL AND NOT opened`

	// Up to the last ordinal of so many, found first: joining the items with themselves is quadratic when the statistics
	// know nothing of the run, as they do of one that was loaded a moment ago.
	deleteItems = `
DELETE FROM work_queue
WHERE run_id = $1 AND ordinal <= COALESCE(
    (SELECT ordinal FROM work_queue WHERE run_id = $1 ORDER BY ordinal OFFSET $2::int - 1 LIMIT 1), 2147483647)
  AND EXISTS (SELECT 1 FROM batchrun WHERE id = $1 AND state = 'cancelled' AND sealed_at IS NULL AND NOT opened)`

	// The same of the lines that items stand in.
	deleteLanes = `
DELETE FROM work_order
WHERE run_id = $1 AND ordinal <= COALESCE(
    (SELECT ordinal FROM work_order WHERE run_id = $1 ORDER BY ordinal OFFSET $2::int - 1 LIMIT 1), 2147483647)
  AND EXISTS (SELECT 1 FROM batchrun WHERE id = $1 AND state = 'cancelled' AND sealed_at IS NULL AND NOT opened)`

	deleteLoad = `
WITH gone AS (
    DELETE FROM batchrun WHERE id = $1 AND state = 'cancelled' AND sealed_at IS NULL AND NOT opened RETURNING id)
DELETE FROM run_step s USING gone WHERE s.run_id = gone.id`

	// A load whose node is gone, or whose clearing was begun and not finished by a node that is gone.
	abandonedLoads = `
SELECT r.id FROM batchrun r
WHERE r.sealed_at IS NULL AND NOT r.opened AND r.state IN ('loading', 'cancelled') AND NOT EXISTS (
    SELECT 1 FROM node_session n
    WHERE n.id = r.loader_session AND n.ended_at IS NULL AND n.expires_at > clock_timestamp())`
)

const clearRows = 50_000

// ClearLoad takes back a load that failed: the run's row and its items. It does nothing to a run that was sealed, and
// says so; a run that does not exist is cleared already.
func (s *Store) ClearLoad(ctx context.Context, run RunID) (sealed bool, err error) {
	return s.clearLoad(ctx, run, s.inTx)
}

// clearLoad runs its transactions through do, which may hold them against a lease.
func (s *Store) clearLoad(ctx context.Context, run RunID,
	do func(context.Context, func(context.Context, pgx.Tx) error) error,
) (sealed bool, err error) {
	err = do(ctx, func(ctx context.Context, tx pgx.Tx) error {
		sealed, err = giveUp(ctx, tx, run)
		return err
	})
	for _, statement := range []string{deleteItems, deleteLanes} {
		for rows := int64(clearRows); err == nil && !sealed && rows == clearRows; {
			err = do(ctx, func(ctx context.Context, tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, statement, run, clearRows)
				rows = tag.RowsAffected()
				return err
			})
		}
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

func giveUp(ctx context.Context, tx pgx.Tx, run RunID) (sealed bool, err error) {
	err = tx.QueryRow(ctx, lockLoad, run).Scan(&sealed)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil || sealed {
		return sealed, err
	}
	_, err = tx.Exec(ctx, giveUpLoad, run)
	return false, err
}

// ClearAbandonedLoads removes runs whose loading node died before the seal, and returns them. Leader work; every
// transaction of it checks the lease.
func (s *Store) ClearAbandonedLoads(ctx context.Context, lease Lease) ([]RunID, error) {
	rows, err := s.pool.Query(ctx, abandonedLoads)
	if err != nil {
		return nil, fmt.Errorf("look for abandoned loads: %w", err)
	}
	abandoned, err := pgx.CollectRows(rows, pgx.RowTo[RunID])
	if err != nil {
		return nil, fmt.Errorf("look for abandoned loads: %w", err)
	}
	var cleared []RunID
	for _, run := range abandoned {
		sealed, err := s.clearLoad(ctx, run, func(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
			return s.AsLeader(ctx, lease, f)
		})
		if err != nil {
			return cleared, err
		}
		if !sealed {
			cleared = append(cleared, run)
		}
	}
	return cleared, nil
}
