package plane

import (
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
)

func CollectRunIDs(rows pgx.Rows, err error) ([]workqueue.RunID, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[workqueue.RunID])
}
