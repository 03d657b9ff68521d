package health

import (
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/session"
)

func (f *Facts) queueStreams(b *pgx.Batch) {
	b.Queue(session.HealthStreams).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[session.StreamTrouble])
		if len(found) > 0 {
			f.Streams = found[0]
		}
		return err
	})
}
