package workqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// MaxErrorCodes bounds the groups that Errors returns. Services choose codes, so their number has no other limit.
const MaxErrorCodes = 1000

// ErrorGroup is the items of a run that are failed now with one code in one step.
type ErrorGroup struct {
	Step     string         `json:"step"`
	Code     string         `json:"code"`
	Count    int64          `json:"count"`
	First    *time.Time     `json:"first,omitempty" doc:"when the first of these items got this error"`
	Last     *time.Time     `json:"last,omitempty"`
	Examples []ErrorExample `json:"examples" doc:"the first three by ordinal"`
}

// ErrorExample is one failed item.
type ErrorExample struct {
	Key     string `json:"key"`
	Message string `json:"message"`
}

// A part counts when the item's bit is still in the failed plane and no later generation wrote another. work_part_error
// finds the parts, the primary keys of work_block, work_part and work_slice do the rest. The newest generation is asked
// for item by item: as an anti-join, over a run that was never analyzed, it is quadratic.
const errorGroups = `
WITH current AS MATERIALIZED (
    SELECT p.step, p.error_code, p.error_message, p.ordinal, p.slice_id,
        row_number() OVER (PARTITION BY p.step, p.error_code ORDER BY p.ordinal) AS nth
    FROM work_part p
    JOIN work_block b ON b.run_id = p.run_id AND b.step = p.step AND b.block = p.ordinal / 8192
    WHERE p.run_id = $1 AND p.error_code IS NOT NULL AND get_bit(b.failed, p.ordinal % 8192) = 1
        AND p.generation = (SELECT max(n.generation) FROM work_part n
            WHERE n.run_id = p.run_id AND n.step = p.step AND n.ordinal = p.ordinal)
), grouped AS (
    SELECT c.step, c.error_code, count(*) AS items,
        min(coalesce(w.ended_at, w.sent_at)) AS first, max(coalesce(w.ended_at, w.sent_at)) AS last
    FROM current c LEFT JOIN work_slice w ON w.id = c.slice_id
    GROUP BY c.step, c.error_code
    ORDER BY items DESC, c.step, c.error_code
    LIMIT $2
)
SELECT s.name, g.error_code, g.items, g.first, g.last, q.item_key, c.error_message
FROM grouped g
JOIN run_step s ON s.run_id = $1 AND s.step = g.step
JOIN current c ON c.step = g.step AND c.error_code = g.error_code AND c.nth <= 3
JOIN work_queue q ON q.run_id = $1 AND q.ordinal = c.ordinal
ORDER BY g.items DESC, g.step, g.error_code, c.ordinal`

// Errors groups the items of a run that are failed now by step and error code, the greatest group first, at most
// MaxErrorCodes groups. The error wraps ErrNotFound when there is no such run.
func (s *Store) Errors(ctx context.Context, id RunID) ([]ErrorGroup, error) {
	groups := []ErrorGroup{}
	err := s.snapshot(ctx, func(tx pgx.Tx) error {
		if _, err := readSummary(ctx, tx, id); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, errorGroups, id, MaxErrorCodes)
		if err != nil {
			return err
		}
		var g ErrorGroup
		var example ErrorExample
		to := []any{&g.Step, &g.Code, &g.Count, &g.First, &g.Last, &example.Key, &example.Message}
		_, err = pgx.ForEachRow(rows, to, func() error {
			n := len(groups)
			if n == 0 || groups[n-1].Step != g.Step || groups[n-1].Code != g.Code {
				groups = append(groups, g)
				n++
			}
			groups[n-1].Examples = append(groups[n-1].Examples, example)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("group the errors of run %s: %w", id, err)
	}
	return groups, nil
}
