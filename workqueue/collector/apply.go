package collector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// collectorLocks is the class of the advisory locks of collectors. Those who add hold one together, those who change or
// delete a collector hold it alone: what is added follows one definition as a whole, and no row of the collector, which
// every claim writes, is in the way of those who add.
//
// Locks are taken in this order, everywhere:
//
//  1. the advisory lock of the collector's name
//  2. collector_seen, new ids, in the order of the ids
//  3. collector_key, in the order of its primary key; claims and sweeps skip what others hold
//  4. collector_op
//  5. the row of the collector
//  6. the row of the endpoint in endpoint_pace
//
// A claim takes 5 and 6 before 3, and never waits for 3.
const (
	shareCollector = `SELECT pg_advisory_xact_lock_shared(1668246639, hashtext($1))`
	holdCollector  = `SELECT pg_advisory_xact_lock(1668246639, hashtext($1))`
)

const (
	storedCollector = `
SELECT id, version, key_version, spec = $2::jsonb AND source = $3, spec, changed_by, changed_at
FROM collector WHERE name = $1 AND state <> 'deleting'`

	insertCollector = `
INSERT INTO collector (name, run_id, spec, source, endpoint, min_size, max_size, max_age, in_flight, rate, timeout,
    dedupe, strict, levels, created_by, changed_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15)
RETURNING changed_at`

	// updateCollector has what waits under the old key version go at once, since what comes has to wait for it. Priorities
	// that were stored once are looked for as long as the collector lives.
	updateCollector = `
UPDATE collector
SET version = version + 1, spec = $2, source = $3, endpoint = $4, min_size = $5, max_size = $6, max_age = $7,
    in_flight = $8, rate = $9, timeout = $10, dedupe = $11, strict = $12, levels = greatest(levels, $13),
    key_version = key_version + $15, drain_at = CASE WHEN $15 > 0 THEN tranche_now() ELSE drain_at END,
    timing = timing + 1, failures = 0, backoff_until = NULL, refused_since = NULL,
    changed_by = $14, changed_at = tranche_now()
WHERE id = $1
RETURNING version, changed_at`

	makeOnePace = `INSERT INTO endpoint_pace (endpoint) VALUES ($1) ON CONFLICT DO NOTHING`
)

// ApplyCollector puts a collector on record, or changes it, with a row in the audit log. One that is the same in text
// and meaning changes nothing. Changes hold from the next flush on; when the keys are made otherwise, what waits under
// the old ones goes before what comes.
func (s Store) ApplyCollector(ctx context.Context, c Text, actor string) (AppliedCollector, error) {
	c.Spec.Name = c.Name
	rate, err := c.validate()
	if err != nil {
		return AppliedCollector{}, err
	}
	doc, err := json.Marshal(c.Spec)
	if err != nil {
		return AppliedCollector{}, fmt.Errorf("apply collector %s: %w", c.Name, err)
	}
	change := collectorChange{Text: c, doc: doc, actor: pg.Plain(actor)}
	if rate > 0 {
		change.rate = &rate
	}
	var out AppliedCollector
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = change.apply(ctx, tx)
		return err
	})
	if err == nil && !out.Unchanged && !out.Created {
		err = s.retime(ctx, c.Name)
	}
	if err != nil {
		return AppliedCollector{}, fmt.Errorf("apply collector %s: %w", c.Name, err)
	}
	return out, nil
}

// collectorChange is one application of a collector.
type collectorChange struct {
	Text
	doc   []byte
	rate  *float64
	actor string
}

func (c *collectorChange) apply(ctx context.Context, tx pgx.Tx) (out AppliedCollector, err error) {
	out = AppliedCollector{Name: c.Name, ChangedBy: c.actor}
	if _, err := tx.Exec(ctx, holdCollector, c.Name); err != nil {
		return out, err
	}
	var id int32
	var keyVersion int
	var same bool
	var before json.RawMessage
	err = tx.QueryRow(ctx, storedCollector, c.Name, c.doc, c.Source).
		Scan(&id, &out.Version, &keyVersion, &same, &before, &out.ChangedBy, &out.ChangedAt)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return c.create(ctx, tx)
	case err != nil:
		return out, err
	case same:
		out.Unchanged = true
		return out, nil
	}
	var old CollectorSpec
	if err := json.Unmarshal(before, &old); err != nil {
		return out, fmt.Errorf("read its present definition: %w", err)
	}
	out.Renumbered = !old.OrderBy.same(c.Spec.OrderBy)
	return c.change(ctx, tx, id, before, out)
}

func (c *collectorChange) create(ctx context.Context, tx pgx.Tx) (AppliedCollector, error) {
	out := AppliedCollector{Name: c.Name, Version: 1, Created: true, ChangedBy: c.actor}
	if _, err := tx.Exec(ctx, makeOnePace, c.Spec.Endpoint); err != nil {
		return out, err
	}
	p := &c.Spec
	err := tx.QueryRow(ctx, insertCollector, c.Name, uuid.Must(uuid.NewV7()), c.doc, c.Source, p.Endpoint, p.MinSize,
		p.MaxSize, time.Duration(p.MaxAge), p.InFlight, c.rate, time.Duration(p.Timeout), time.Duration(p.Dedupe), p.Strict,
		p.levels(), c.actor).Scan(&out.ChangedAt)
	if err != nil {
		return out, err
	}
	return out, ledger.AuditChange(ctx, tx, ledger.Action{Actor: c.actor, Name: "collector_apply", Subject: c.Name,
		After: map[string]any{"version": 1, "spec": json.RawMessage(c.doc)}})
}

func (c *collectorChange) change(ctx context.Context, tx pgx.Tx, id int32, before json.RawMessage, out AppliedCollector,
) (AppliedCollector, error) {
	if _, err := tx.Exec(ctx, makeOnePace, c.Spec.Endpoint); err != nil {
		return out, err
	}
	step := 0
	if out.Renumbered {
		step = 1
	}
	p, was := &c.Spec, out.Version
	err := tx.QueryRow(ctx, updateCollector, id, c.doc, c.Source, p.Endpoint, p.MinSize, p.MaxSize,
		time.Duration(p.MaxAge), p.InFlight, c.rate, time.Duration(p.Timeout), time.Duration(p.Dedupe), p.Strict,
		p.levels(), c.actor, step).
		Scan(&out.Version, &out.ChangedAt)
	if err != nil {
		return out, err
	}
	out.ChangedBy = c.actor
	return out, ledger.AuditChange(ctx, tx, ledger.Action{Actor: c.actor, Name: "collector_apply", Subject: c.Name,
		Before: map[string]any{"version": was, "spec": before},
		After:  map[string]any{"version": out.Version, "spec": json.RawMessage(c.doc)}})
}

// levels is the highest priority that operations may have.
func (s *CollectorSpec) levels() int {
	if s.Order == OrderPriority {
		return MaxOpPriority
	}
	return 0
}
