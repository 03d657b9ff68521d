package collector

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// After a resume the first flush is tried immediately, regardless of earlier failures.
	setCollector = `
UPDATE collector SET state = $2, paused_by = CASE $2 WHEN 'paused' THEN $3 ELSE '' END,
    paused_at = CASE $2 WHEN 'paused' THEN tranche_now() END,
    backoff_until = CASE $2 WHEN 'paused' THEN backoff_until END,
    failures = CASE $2 WHEN 'paused' THEN failures ELSE 0 END
WHERE name = $1 AND state <> 'deleting'`

	markDeleting = `
UPDATE collector SET state = 'deleting', changed_by = $2, changed_at = tranche_now()
WHERE name = $1 AND state <> 'deleting'`

	drainCollector = `
UPDATE collector SET drain_at = tranche_now(), timing = timing + 1 WHERE name = $1 AND state <> 'deleting'
RETURNING (SELECT count(*) FROM collector_key k WHERE k.collector = id AND k.untried > 0),
    (SELECT coalesce(sum(k.untried), 0)::bigint FROM collector_key k WHERE k.collector = id)`
)

// Drained is what a drain makes due.
type Drained struct {
	Keys   int64 `json:"keys"`
	Ops    int64 `json:"ops" doc:"operations that no longer wait for min_size or max_age"`
	Paused bool  `json:"paused" doc:"nothing is flushed until the collector is resumed"`
}

// DrainCollector makes all waiting operations due, with an audit entry. Backoff, rates and limits still apply.
func (s Store) DrainCollector(ctx context.Context, name, actor string) (out Drained, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		was, err := kind().Find(ctx, tx, name)
		if err != nil {
			return err
		}
		out = Drained{Paused: was.State == workqueue.DocumentPaused}
		if err := tx.QueryRow(ctx, drainCollector, name).Scan(&out.Keys, &out.Ops); err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: pg.Plain(actor), Name: "collector_drain", Subject: name,
			Detail: map[string]any{"keys": out.Keys, "ops": out.Ops}})
	})
	if err == nil {
		err = s.retime(ctx, name)
	}
	return out, pg.Wrap(err, "drain collector %s", name)
}

const timingBatch = 2000

const (
	timingOf = `
SELECT id, timing, timed < timing FROM collector WHERE name = $1 AND state <> 'deleting'`

	// retimeKeys sets the due times of the keys after a key, in lock order. Flushing keys get theirs when recorded.
	retimeKeys = `
WITH part AS MATERIALIZED (
    SELECT key_version, key FROM collector_key
    WHERE collector = $1 AND (key_version, key) > ($2, $3::text COLLATE "C")
    ORDER BY key_version, key LIMIT $4 FOR NO KEY UPDATE),
timed AS (
    UPDATE collector_key k
    SET due_at = collector_due(k.untried, k.oldest_at, k.retry_at, k.held_until, c.min_size, c.max_age, c.drain_at)
    FROM part p, collector c
    WHERE c.id = $1 AND k.collector = $1 AND k.key_version = p.key_version AND k.key = p.key AND k.flush IS NULL
      AND k.due_at IS DISTINCT FROM
          collector_due(k.untried, k.oldest_at, k.retry_at, k.held_until, c.min_size, c.max_age, c.drain_at))
SELECT key_version, key FROM part ORDER BY key_version DESC, key DESC LIMIT 1`

	markTimed = `UPDATE collector SET timed = $2 WHERE id = $1 AND timed < $2`
)

// retime sets the due times of a collector's keys by its definition. If interrupted, the leader does the rest.
func (s Store) retime(ctx context.Context, name string) error {
	var id int32
	var timing, keyVersion int
	var due bool
	var key string
	timed, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	err := s.db.Pool.QueryRow(timed, timingOf, name).Scan(&id, &timing, &due)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !due {
		return nil
	}
	for more := err == nil; more; {
		more, err = false, s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			err := tx.QueryRow(ctx, retimeKeys, id, keyVersion, key, timingBatch).Scan(&keyVersion, &key)
			if errors.Is(err, pgx.ErrNoRows) {
				_, err = tx.Exec(ctx, markTimed, id, timing)
				return err
			}
			more = err == nil
			return err
		})
	}
	return pg.Wrap(err, "set the times of the keys of collector %s", name)
}

// SetCollector pauses, resumes or deletes a collector. A paused one still takes operations, and its flushes in
// flight finish. A deleted one frees its name; the leader deletes its rows. Without force, operations cause a
// [workqueue.ConflictError].
func (s Store) SetCollector(
	ctx context.Context, name, state string, force bool, actor string,
) (workqueue.ControlledDocument, error) {
	return kind().Set(ctx, s.db, name, state, actor,
		func(ctx context.Context, tx pgx.Tx, _ *ledger.Held, out *workqueue.ControlledDocument) error {
			if state != workqueue.DocumentDeleted {
				_, err := tx.Exec(ctx, setCollector, name, state, pg.Plain(actor))
				return err
			}
			if out.Waiting+out.Parked > 0 && !force {
				return workqueue.Conflict("collector %s has operations: %d wait, %d parked; drain it and requeue or drop what "+
					"is parked, or delete it with force (--force) and lose them", name, out.Waiting, out.Parked)
			}
			_, err := tx.Exec(ctx, markDeleting, name, pg.Plain(actor))
			return err
		})
}
