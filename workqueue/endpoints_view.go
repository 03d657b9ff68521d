package workqueue

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// EndpointLoad is the work that running runs have for one endpoint, in items.
type EndpointLoad struct {
	Endpoint  string
	Runs      int
	Ready     int64
	InFlight  int64
	Scheduled int64
}

// batchrun_active finds the runs; their blocks with ready items come from work_block_ready, their live slices from
// work_slice_live.
const endpointLoads = `
SELECT s.endpoint, count(DISTINCT r.id), coalesce(sum(b.ready), 0)::bigint, coalesce(sum(w.in_flight), 0)::bigint,
    coalesce(sum(w.scheduled), 0)::bigint
FROM batchrun r
JOIN run_step s ON s.run_id = r.id
LEFT JOIN LATERAL (
    SELECT sum(bit_count(ready)) AS ready FROM work_block WHERE run_id = s.run_id AND step = s.step AND has_ready
) b ON true
LEFT JOIN LATERAL (
    SELECT sum(bit_count(remaining)) FILTER (WHERE state IN ('claimed', 'sent')) AS in_flight,
        sum(bit_count(remaining)) FILTER (WHERE state = 'scheduled') AS scheduled
    FROM work_slice WHERE run_id = s.run_id AND step = s.step AND state IN ('scheduled', 'claimed', 'sent')
) w ON true
WHERE r.state = 'running'
GROUP BY s.endpoint
ORDER BY s.endpoint`

// EndpointLoads returns the work of running runs by endpoint, ordered by name.
func (s *Store) EndpointLoads(ctx context.Context) ([]EndpointLoad, error) {
	rows, err := s.pool.Query(ctx, endpointLoads)
	if err != nil {
		return nil, fmt.Errorf("view the load of endpoints: %w", err)
	}
	loads, err := pgx.CollectRows(rows, pgx.RowToStructByPos[EndpointLoad])
	if err != nil {
		return nil, fmt.Errorf("view the load of endpoints: %w", err)
	}
	return loads, nil
}

// Ping returns nil when the database answers.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("ask PostgreSQL: %w", err)
	}
	return nil
}
