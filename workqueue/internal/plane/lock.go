package plane

import (
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
)

// LockStepsOfCanary locks the steps of a run. Claims, re-runs and cancels take the same locks: while they are held,
// nothing becomes ready or claimed.
const LockStepsOfCanary = `SELECT step FROM run_step WHERE run_id = $1 ORDER BY step FOR NO KEY UPDATE`

// CollectRunIDs reads the ids of runs.
func CollectRunIDs(rows pgx.Rows, err error) ([]workqueue.RunID, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[workqueue.RunID])
}
