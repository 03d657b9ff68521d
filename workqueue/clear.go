package workqueue

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A load that failed or died is taken back in two moves: its row changes state, which shuts out writers that are still
// at it, and then items and row are deleted, a bounded number in each transaction.
const (
	giveUpLoad = `
UPDATE batchrun SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = $1 AND state = 'loading'`

	deleteItems = `
DELETE FROM work_queue WHERE run_id = $1 AND ordinal IN (
    SELECT ordinal FROM work_queue WHERE run_id = $1 ORDER BY ordinal LIMIT $2)`

	deleteLoad = `
DELETE FROM batchrun WHERE id = $1 AND state = 'cancelled' AND sealed_at IS NULL`

	// A load whose node is gone, or whose clearing was begun and not finished.
	abandonedLoads = `
SELECT r.id FROM batchrun r
WHERE r.sealed_at IS NULL AND r.state IN ('loading', 'cancelled') AND NOT EXISTS (
    SELECT 1 FROM node_session n
    WHERE n.id = r.loader_session AND n.ended_at IS NULL AND n.expires_at > clock_timestamp())`
)

const clearRows = 50_000

func (s *Store) clearLoad(ctx context.Context, run RunID) error {
	if _, err := s.pool.Exec(ctx, giveUpLoad, run); err != nil {
		return fmt.Errorf("give up the load of run %s: %w", run, err)
	}
	for {
		tag, err := s.pool.Exec(ctx, deleteItems, run, clearRows)
		if err != nil {
			return fmt.Errorf("clear items of run %s: %w", run, err)
		}
		if tag.RowsAffected() < clearRows {
			break
		}
	}
	if _, err := s.pool.Exec(ctx, deleteLoad, run); err != nil {
		return fmt.Errorf("clear run %s: %w", run, err)
	}
	return nil
}

// ClearAbandonedLoads removes runs whose loading node died before the seal. Leader work; it checks the lease before
// each run. It returns the runs that it removed.
func (s *Store) ClearAbandonedLoads(ctx context.Context, lease Lease) ([]RunID, error) {
	var cleared []RunID
	rows, err := s.pool.Query(ctx, abandonedLoads)
	if err != nil {
		return nil, fmt.Errorf("look for abandoned loads: %w", err)
	}
	abandoned, err := pgx.CollectRows(rows, pgx.RowTo[RunID])
	if err != nil {
		return nil, fmt.Errorf("look for abandoned loads: %w", err)
	}
	for _, run := range abandoned {
		err := s.asLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, giveUpLoad, run)
			return err
		})
		if err == nil {
			err = s.clearLoad(ctx, run)
		}
		if err != nil {
			return cleared, err
		}
		cleared = append(cleared, run)
	}
	return cleared, nil
}
