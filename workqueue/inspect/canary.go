package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// VersionFigures is how an endpoint has handled its newest requests, for comparison with another version of it.
type VersionFigures struct {
	Endpoint  string      `json:"endpoint"`
	Requests  int64       `json:"requests" doc:"that ended: the newest 1,000 since the comparison began"`
	Items     int64       `json:"items" doc:"in them; an item counts as often as it was asked for"`
	Failed    int64       `json:"failed" doc:"of those, answered with an error, whether or not they were retried"`
	Retried   int64       `json:"retried" doc:"of the failed ones, those that were retried"`
	Codes     []CodeCount `json:"codes" doc:"of the errors, the five most frequent"`
	Timeouts  int64       `json:"timeouts" doc:"requests without an answer before their deadline"`
	P50Millis float64     `json:"p50_millis" doc:"time for one item: half of the answered requests took no longer"`
	P95Millis float64     `json:"p95_millis"`
}

// CodeCount is the items with one error code.
type CodeCount struct {
	Code  string `json:"code"`
	Items int64  `json:"items"`
}

const figuresOf = 1000

// endedAt is an endpoint's newest ended slices since a time, by work_slice_ended, and their errors. Those of single items
// are searched only among the slice's ordinals; failed requests have one error for all. Other ends, like a lost node,
// say nothing.
const endedAt = `
WITH ended AS MATERIALIZED (
    SELECT s.run_id, s.step, s.id, s.state, s.error_code, s.error_retry, bit_count(s.mask) AS items, s.took,
           s.block * 8192 + position(B'1' IN s.mask) - 1 AS first, s.block * 8192 + 8191 AS last
    FROM work_slice s
    WHERE s.endpoint = $1 AND s.ended_at > $2
      AND (s.state = 'recorded' OR s.state = 'expired' AND s.error_code IN ('deadline', 'too_many_deliveries'))
    ORDER BY s.ended_at DESC LIMIT $3),
errors AS MATERIALIZED (
    SELECT error_code, items, error_retry AS retried FROM ended WHERE state = 'recorded' AND error_code IS NOT NULL
    UNION ALL
    SELECT p.error_code, 1, false FROM ended e JOIN work_result p ON p.run_id = e.run_id AND p.step = e.step
        AND p.ordinal BETWEEN e.first AND e.last AND p.slice_id = e.id
    WHERE e.error_code IS NULL AND p.error_code IS NOT NULL
    UNION ALL
    SELECT w.error_code, 1, true FROM ended e JOIN work_error w ON w.run_id = e.run_id AND w.step = e.step
        AND w.ordinal BETWEEN e.first AND e.last AND w.slice_id = e.id
    WHERE e.error_code IS NULL)`

const versionFigures = endedAt + `
SELECT $1::text, count(*), coalesce(sum(items), 0)::bigint,
       (SELECT coalesce(sum(items), 0)::bigint FROM errors),
       (SELECT coalesce(sum(items) FILTER (WHERE retried), 0)::bigint FROM errors),
       count(*) FILTER (WHERE state = 'expired'),
       coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY 1000 * took / items) FILTER (WHERE state = 'recorded'), 0),
       coalesce(percentile_cont(0.95) WITHIN GROUP (ORDER BY 1000 * took / items) FILTER (WHERE state = 'recorded'), 0)
FROM ended`

const versionCodes = endedAt + `
SELECT error_code, sum(items)::bigint FROM errors GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5`

// Figures returns how an endpoint has handled requests since a time.
func (s Store) Figures(ctx context.Context, endpoint string, since time.Time) (f VersionFigures, err error) {
	err = s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, versionFigures, endpoint, since, figuresOf).Scan(&f.Endpoint, &f.Requests, &f.Items, &f.Failed,
			&f.Retried, &f.Timeouts, &f.P50Millis, &f.P95Millis)
		if err == nil {
			f.Codes, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[CodeCount], versionCodes, endpoint, since, figuresOf)
		}
		return err
	})
	if err != nil {
		return f, fmt.Errorf("read how endpoint %s handles requests: %w", endpoint, err)
	}
	return f, nil
}
