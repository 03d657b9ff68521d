package export

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
)

// sweepAtOnce bounds the results that one transaction deletes: each may be 64 MiB.
const sweepAtOnce = 4

// By work_large_open, and slices by their key. A slice that has ended comes never back, and recording marks a result in
// the transaction that may end its slice: what is seen as not recorded of a slice that has ended is nobody's.
const deleteAbandoned = `
DELETE FROM work_large WHERE recorded_at IS NULL AND id = ANY (ARRAY(
    SELECT l.id FROM work_large l
    WHERE l.recorded_at IS NULL AND NOT EXISTS (
        SELECT FROM work_slice s WHERE s.id = l.slice_id AND s.state IN ('scheduled', 'claimed', 'sent'))
    LIMIT $1))`

// Sweep deletes what has come of results that nobody will record: their service has died on the way, a piece was lost,
// or the item was answered otherwise. It returns how many it has deleted. Leader work.
func (s Store) Sweep(ctx context.Context, lease workqueue.Lease) (swept int, err error) {
	for {
		var deleted int64
		err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, deleteAbandoned, sweepAtOnce)
			deleted = tag.RowsAffected()
			return err
		})
		if err != nil {
			return swept, fmt.Errorf("delete what has come of results that nobody will record: %w", err)
		}
		if swept += int(deleted); deleted < sweepAtOnce {
			return swept, nil
		}
	}
}
