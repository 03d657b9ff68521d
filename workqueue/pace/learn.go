package pace

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Change is a change of the pace of an endpoint, for people.
type Change struct {
	What          string // in_flight, rate or chunk
	Before, After string
	Reason        string
}

// upsertPace touches only what the controller decides: the rest of the row is of others.
const upsertPace = `
INSERT INTO endpoint_pace AS p (endpoint, in_flight, rate, chunk, learned)
VALUES ($1, $2, nullif($3::float8, 0), nullif($4::int, 0), $5::text::jsonb)
ON CONFLICT (endpoint) DO UPDATE
SET in_flight = excluded.in_flight, rate = excluded.rate, chunk = excluded.chunk, learned = excluded.learned,
    changed_at = tranche_now()`

const insertChanges = `
INSERT INTO endpoint_change (endpoint, what, before, after, reason)
SELECT $1, u.what, u.before, u.after, u.reason
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS u (what, before, after, reason, n)
ORDER BY u.n`

// SavePace stores what the controller of an endpoint has decided and learned, and the changes with their reasons. It
// takes the lock of that one row. Leader work.
func (s Store) SavePace(ctx context.Context, lease workqueue.Lease, endpoint string, p LearnedPace,
	changes []Change,
) error {
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, upsertPace, endpoint, p.InFlight, p.Rate, p.Chunk, string(p.Learned))
		if err != nil || len(changes) == 0 {
			return err
		}
		var what, before, after, reasons []string
		for _, c := range changes {
			what, before, after = append(what, c.What), append(before, c.Before), append(after, c.After)
			reasons = append(reasons, pg.Plain(c.Reason))
		}
		_, err = tx.Exec(ctx, insertChanges, endpoint, what, before, after, reasons)
		return err
	})
	if err != nil {
		return fmt.Errorf("save the pace of endpoint %s: %w", endpoint, err)
	}
	return nil
}

// keptChanges is how many changes of an endpoint are kept.
const keptChanges = 500

// pruneChanges goes by the index of changes by endpoint.
const pruneChanges = `
DELETE FROM endpoint_change c
USING (SELECT e.endpoint, (SELECT k.id FROM endpoint_change k WHERE k.endpoint = e.endpoint
                           ORDER BY k.id DESC OFFSET $1 LIMIT 1) AS upto
       FROM (SELECT DISTINCT endpoint FROM endpoint_change) e) old
WHERE c.endpoint = old.endpoint AND c.id <= old.upto`

// PruneChanges forgets all but the newest changes of each endpoint, and returns how many. Leader work.
func (s Store) PruneChanges(ctx context.Context, lease workqueue.Lease) (n int, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, pruneChanges, keptChanges)
		n = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget old changes of endpoints: %w", err)
	}
	return n, nil
}
