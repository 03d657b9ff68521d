package doctor

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// KeysAddUp says that the keys of collectors count the operations that are there, and that what waits will be flushed.
const KeysAddUp Invariant = "C1"

// doctorCollectors reads every operation of collectors once. A deleted collector is on its way out, key by key, and
// adds up no more.
const doctorCollectors = `
WITH counted AS (
    SELECT collector, numbering, key,
        count(*) FILTER (WHERE parked_at IS NULL AND not_before IS NULL) AS fresh,
        count(*) FILTER (WHERE parked_at IS NULL AND not_before IS NOT NULL) AS retrying,
        count(*) FILTER (WHERE parked_at IS NOT NULL) AS parked
    FROM collector_op GROUP BY collector, numbering, key
)
SELECT coalesce(c.name, 'number ' || collector), x.what, count(*)
FROM collector_key k
FULL JOIN counted o USING (collector, numbering, key)
LEFT JOIN collector c ON c.id = collector
CROSS JOIN LATERAL (VALUES
    ('keys with operations, of no collector', c.id IS NULL),
    ('keys that count what is not there, or do not count what is', (k.fresh, k.retrying, k.parked)
        IS DISTINCT FROM (coalesce(o.fresh, 0), coalesce(o.retrying, 0), coalesce(o.parked, 0))),
    ('keys without an operation', k.flush IS NULL AND k.fresh + k.retrying + k.parked = 0),
    ('keys with operations that wait for no time, or with a time that nothing waits for',
        k.flush IS NULL AND (k.due_at IS NULL) <> (k.fresh + k.retrying = 0)),
    ('keys that wait under a numbering that counts as done, or is not there yet',
        k.fresh + k.retrying > 0 AND k.numbering NOT BETWEEN c.settled AND c.numbering)
) AS x (what, wrong)
WHERE x.wrong AND c.state IS DISTINCT FROM 'deleting'
GROUP BY 1, 2 ORDER BY 1, 2`

func (d *doctor) collectors(ctx context.Context) error {
	rows := pg.Rows(ctx, d.tx, doctorCollectors)
	var (
		name, what string
		n          int64
	)
	_, err := pgx.ForEachRow(rows, []any{&name, &what, &n}, func() error {
		d.found(KeysAddUp, place{}, n, "collector "+name+": "+what)
		return nil
	})
	return err
}
