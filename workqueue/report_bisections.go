package workqueue

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// BisectionReport is chunks that were cut into pieces because they failed as a whole.
type BisectionReport struct {
	Kind   string `json:"kind" enum:"bad_entity,bad_combination,service_down,open" doc:"bad_entity: some items failed by themselves; bad_combination: the pieces all succeeded; open: not over yet"`
	Chunks int64  `json:"chunks" doc:"how many such chunks"`
	Pieces int64  `json:"pieces" doc:"requests that they were cut into"`
	Failed int64  `json:"failed" doc:"items of them that failed in the end"`
}

// A chunk and its pieces have one root. work_slice_block finds the slices of a run, work_part_error its failed parts.
const bisections = `
WITH family AS (
    SELECT coalesce(root, id) AS root, count(*) FILTER (WHERE cause IN ('bisect', 'exhausted', 'unreadable')) AS pieces,
        bool_or(cause = 'breaker') AS down, bool_or(state IN ('scheduled', 'claimed', 'sent')) AS live
    FROM work_slice WHERE run_id = $1 GROUP BY 1
    HAVING bool_or(cause IN ('bisect', 'exhausted', 'unreadable')) AND max(bit_count(mask)) > 1
), failures AS (
    SELECT coalesce(w.root, w.id) AS root, count(*) AS items
    FROM work_part p JOIN work_slice w ON w.id = p.slice_id
    WHERE p.run_id = $1 AND p.error_code IS NOT NULL GROUP BY 1
)
SELECT CASE WHEN f.live THEN 'open' WHEN x.items > 0 THEN 'bad_entity' WHEN f.down THEN 'service_down'
        ELSE 'bad_combination' END AS kind,
    count(*), sum(f.pieces)::bigint, coalesce(sum(x.items), 0)::bigint
FROM family f LEFT JOIN failures x USING (root)
GROUP BY 1 ORDER BY 2 DESC, 1`

func (r *RunReport) readBisections(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, bisections, r.ID)
	if err != nil {
		return err
	}
	r.Bisections, err = pgx.CollectRows(rows, pgx.RowToStructByPos[BisectionReport])
	return err
}
