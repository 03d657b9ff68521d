package dispatch

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
)

const stillClaimed = `
SELECT id FROM work_slice WHERE id = ANY($1) AND session_id = $2 AND state = 'claimed'`

// StillClaimed returns those of some slices that a session has claimed and that nobody has taken from it: by a cancel,
// a reset of all their items, or because their time was over.
func (s Store) StillClaimed(
	ctx context.Context, session workqueue.SessionID, ids []workqueue.SliceID,
) ([]workqueue.SliceID, error) {
	rows, err := s.db.Pool.Query(ctx, stillClaimed, ids, session)
	if err != nil {
		return nil, fmt.Errorf("look which of %d slices are claimed: %w", len(ids), err)
	}
	claimed, err := pgx.CollectRows(rows, pgx.RowTo[workqueue.SliceID])
	if err != nil {
		return nil, fmt.Errorf("look which of %d slices are claimed: %w", len(ids), err)
	}
	return claimed, nil
}
