package health

import (
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/streams"
)

func (f *Facts) queueStreams(b *pgx.Batch) {
	b.Queue(streams.HealthStreams).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[streams.StreamTrouble])
		if len(found) > 0 {
			f.Streams = found[0]
		}
		return err
	})
}
