package doctor

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// doctorTrackers reads every group of the trackers that others have opened, and what failed of them. A deleted one is
// on its way out and adds up no more. Events may have been deleted since: there is never more than one.
const doctorTrackers = `
WITH failed AS (
    SELECT batch_id, grp, bit_or(mask) AS mask, sum(bit_count(mask)) - bit_count(bit_or(mask)) AS twice
    FROM tracker_failed GROUP BY batch_id, grp
), counted AS (
    SELECT g.batch_id, count(*) AS groups, count(*) FILTER (WHERE g.pending <> B'0'::bit(8192)) AS open_groups,
        sum(g.size) AS items, sum(f.twice) AS twice, sum(bit_count(f.mask & g.pending)) AS pending,
        sum(bit_count(f.mask << g.size)) AS past
    FROM tracker_group g
    JOIN tracker_service s ON s.batch_id = g.batch_id
    LEFT JOIN failed f ON f.batch_id = g.batch_id AND f.grp = g.grp
    GROUP BY g.batch_id
)
SELECT s.batch_id, x.invariant, x.what, x.n::bigint
FROM tracker_service s
JOIN tracker_batch b ON b.id = s.batch_id
LEFT JOIN counted c ON c.batch_id = s.batch_id
CROSS JOIN LATERAL (VALUES
    ('I1', 'groups that the batch does not count, or that are not there', abs(b.groups - coalesce(c.groups, 0))),
    ('I1', 'groups with pending items that the batch does not count, or without that it does',
        abs(b.open_groups - coalesce(c.open_groups, 0))),
    ('I1', 'items that the batch does not count, or that are in no group', abs(b.items - coalesce(c.items, 0))),
    ('I1', 'items that failed more than once', coalesce(c.twice, 0)),
    ('I1', 'items that failed and are pending', coalesce(c.pending, 0)),
    ('I1', 'failed items past the end of their group', coalesce(c.past, 0)),
    ('I10', 'it is sealed, and nothing is pending', (b.state = 'sealed' AND b.open_groups = 0)::integer),
    ('I10', 'it has ended without an event, or has one and has not',
        ((b.state IN ('completed', 'cancelled')) <> (s.event_id IS NOT NULL))::integer),
    ('I10', 'events too many', greatest(0,
        (SELECT count(*) - 1 FROM run_event e WHERE e.run_id = s.batch_id AND e.kind LIKE 'tracker.%')))
) AS x(invariant, what, n)
WHERE x.n <> 0 AND s.deleted_at IS NULL
ORDER BY s.batch_id`

func (d *doctor) trackers(ctx context.Context) error {
	rows := pg.Rows(ctx, d.tx, doctorTrackers)
	var (
		batch           uuid.UUID
		invariant, what string
		n               int64
	)
	_, err := pgx.ForEachRow(rows, []any{&batch, &invariant, &what, &n}, func() error {
		d.found(Invariant(invariant), place{}, n, "tracker "+batch.String()+": "+what)
		return nil
	})
	return err
}
