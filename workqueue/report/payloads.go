package report

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Keys are looked up one by one in work_queue_key, whatever the planner knows of the table.
const payloadsOf = `
SELECT g.key, q.payload FROM unnest($2::text[]) AS g (key)
CROSS JOIN LATERAL (SELECT payload FROM work_queue WHERE run_id = $1 AND item_key = g.key LIMIT 1) q`

// Payloads returns those that items have now, by their keys. A key that the run does not have is not in it.
func (s Store) Payloads(ctx context.Context, run workqueue.RunID, keys []string) (map[string]string, error) {
	rows := pg.Rows(ctx, s.db.Pool, payloadsOf, run, keys)
	all := make(map[string]string, len(keys))
	var key, payload string
	_, err := pgx.ForEachRow(rows, []any{&key, &payload}, func() error {
		all[key] = payload
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read payloads of run %s: %w", run, err)
	}
	return all, nil
}
