package settle

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// newParts compares the newest part of items with the one before it: two looks into work_part's primary key for each.
// Two errors are the same to whoever goes on without the part. A step that was left out in between, because one that it
// needs ($5) had failed, was missing to them meanwhile, so that what comes again is new.
const newParts = `
SELECT n.ordinal
FROM unnest($3::int[]) AS o (ordinal)
CROSS JOIN LATERAL (SELECT p.ordinal, p.generation, p.result, p.content_type, p.error_code FROM work_part p
    WHERE p.run_id = $1 AND p.step = $2 AND p.ordinal = o.ordinal ORDER BY p.generation DESC LIMIT 1) n
LEFT JOIN LATERAL (SELECT p.generation, p.result, p.content_type, p.error_code FROM work_part p
    WHERE p.run_id = $1 AND p.step = $2 AND p.ordinal = o.ordinal AND p.generation < n.generation
    ORDER BY p.generation DESC LIMIT 1) f ON true
WHERE f.generation IS NULL OR (f.error_code IS NULL) <> (n.error_code IS NULL)
   OR f.result IS DISTINCT FROM n.result OR f.content_type IS DISTINCT FROM n.content_type
   OR $4 AND n.error_code IS NULL AND EXISTS (SELECT FROM work_part e
       WHERE e.run_id = $1 AND e.step = ANY($5::smallint[]) AND e.ordinal = o.ordinal
         AND e.generation > f.generation AND e.error_code IS NOT NULL)`

// changedParts returns those of some items of a block whose new part at its step, written by this transaction, is not
// what it was.
func changedParts(
	ctx context.Context, tx pgx.Tx, g *plane.Graph, id plane.BlockID, bits bitfield.Set,
) (bitfield.Set, error) {
	ordinals := make([]workqueue.Ordinal, 0, bits.Count())
	for bit := range bits.All() {
		ordinals = append(ordinals, id.Block.Ordinal(bit))
	}
	var changed bitfield.Set
	rows := pg.Rows(ctx, tx, newParts, id.Run, id.Step, ordinals, g.Steps[id.Step].Optional, g.Before[id.Step])
	var ordinal workqueue.Ordinal
	_, err := pgx.ForEachRow(rows, []any{&ordinal}, func() error {
		_, bit := ordinal.Block()
		changed.Add(bit)
		return nil
	})
	if err != nil {
		return changed, fmt.Errorf("compare %d parts of step %d: %w", len(ordinals), id.Step, err)
	}
	return changed, nil
}
