package collector

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// shareCollector takes the advisory lock of a collector's name. Adders share it; changing or deleting the collector
// takes it exclusively. So a batch follows one definition, and adders need not lock the collector's row, which every
// claim writes.
//
// Locks are always taken in this order:
//
//  1. the advisory lock of the collector's name
//  2. new rows of collector_seen, by ID
//  3. collector_key, by primary key; claims and sweeps skip locked rows
//  4. collector_op
//  5. the row of the collector
//  6. the endpoint's row of endpoint_pace
//
// A claim takes 5 and 6 before 3, and never waits for 3.
const shareCollector = `SELECT pg_advisory_xact_lock_shared(hashtext('collector'), hashtext($1))`

func kind() ledger.Kind {
	return ledger.Kind{
		Name: "collector",
		Hold: `
SELECT version, state, false, spec = $2::jsonb AND source = $3, spec, NULL::timestamptz, changed_by, changed_at,
    namespace
FROM collector WHERE name = $1 AND state <> 'deleting'
FOR NO KEY UPDATE`,
		Left: `
SELECT coalesce(sum(k.untried + k.retrying), 0)::bigint, coalesce(sum(k.parked), 0)::bigint
FROM collector_key k JOIN collector c ON c.id = k.collector WHERE c.name = $1 AND c.state <> 'deleting'`,
	}
}

const (
	insertCollector = `
INSERT INTO collector (name, run_id, spec, source, endpoint, min_size, max_size, max_age, in_flight, rate, timeout,
    dedupe, strict, levels, created_by, changed_by, namespace)
VALUES ($1, $15, $2, $3, $4, $5, $6, $7, $8, nullif($9::float8, 0), $10, $11, $12, $13, $14,
    $14, $16)
RETURNING version, changed_at`

	// updateCollector makes keys of the old key version due immediately, since new ones must wait for them.
	// Priorities that were once stored are searched as long as the collector exists.
	updateCollector = `
UPDATE collector
SET version = version + 1, spec = $2, source = $3, endpoint = $4, min_size = $5, max_size = $6, max_age = $7,
    in_flight = $8, rate = nullif($9::float8, 0), timeout = $10, dedupe = $11, strict = $12,
    levels = greatest(levels, $13), key_version = key_version + $15,
    folds = CASE WHEN $15 > 0 THEN folds || coalesce(spec ->> 'fold', '') ELSE folds END,
    drain_at = CASE WHEN $15 > 0 THEN tranche_now() ELSE drain_at END,
    timing = timing + 1, failures = 0, backoff_until = NULL, refused_since = NULL,
    changed_by = $14, changed_at = tranche_now(), namespace = $16
WHERE name = $1 AND state <> 'deleting'
RETURNING version, changed_at`

	makeOnePace = `INSERT INTO endpoint_pace (endpoint) VALUES ($1) ON CONFLICT DO NOTHING`
)

// ApplyCollector creates or changes a collector, from its next flush on. Operations under old keys go first. The text
// was checked when it was parsed, see internal/ingest.
func (s Store) ApplyCollector(ctx context.Context, c Text, actor string) (out workqueue.AppliedDocument, err error) {
	c.Spec.Name = c.Name
	rate, err := ParseRequestRate(c.Spec.Rate)
	if err != nil {
		return out, err
	}
	doc := workqueue.Document{Name: c.Name, Source: c.Source, Newest: c.Newest}
	if doc.Spec, err = json.Marshal(c.Spec); err != nil {
		return out, fmt.Errorf("apply collector %s: %w", c.Name, err)
	}
	p := &c.Spec
	args := []any{c.Name, doc.Spec, c.Source, p.Endpoint, p.MinSize, p.MaxSize, time.Duration(p.MaxAge), p.InFlight,
		rate, time.Duration(p.Timeout), time.Duration(p.Dedupe), p.Strict, p.levels(), pg.Plain(actor)}
	out, err = kind().Apply(ctx, s.db, &doc, actor,
		func(ctx context.Context, tx pgx.Tx, was *ledger.Held, out *workqueue.AppliedDocument) error {
			if _, err := tx.Exec(ctx, makeOnePace, p.Endpoint); err != nil {
				return err
			}
			write, last := insertCollector, any(uuid.Must(uuid.NewV7()))
			if !was.Deleted {
				var old CollectorSpec
				if err := json.Unmarshal(was.Spec, &old); err != nil {
					return fmt.Errorf("read its present definition: %w", err)
				}
				write, last = updateCollector, 0
				if out.Renumbered = !old.OrderBy.same(p.OrderBy) || old.Fold != p.Fold || old.FoldBy != p.FoldBy; out.Renumbered {
					last = 1
				}
			}
			return tx.QueryRow(ctx, write, append(args, last, workqueue.Into(ctx))...).Scan(&out.Version, &out.ChangedAt)
		})
	if err == nil && out.Previous > 0 {
		err = s.retime(ctx, c.Name)
	}
	return out, err
}

func (s *CollectorSpec) levels() int {
	if s.Order == OrderPriority {
		return MaxOpPriority
	}
	return 0
}
