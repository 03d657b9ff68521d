package collector

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	lockCollector = `
SELECT id, state, version FROM collector WHERE name = $1 AND state <> 'deleting' FOR NO KEY UPDATE`

	pauseCollector = `
UPDATE collector SET state = 'paused', paused_by = $2, paused_at = tranche_now() WHERE id = $1`

	// resumeCollector lets the first flush try at once whatever came before.
	resumeCollector = `
UPDATE collector SET state = 'active', paused_by = '', paused_at = NULL, backoff_until = NULL, failures = 0
WHERE id = $1`

	drainCollector = `
UPDATE collector SET drain_at = tranche_now(), timing = timing + 1 WHERE id = $1`

	waitingOf = `
SELECT count(*), coalesce(sum(fresh), 0)::bigint FROM collector_key WHERE collector = $1 AND fresh > 0`
)

// heldCollector is a collector whose row is locked.
type heldCollector struct {
	id      int32
	state   string
	version int
}

// holdingCollector locks a collector, and, when it is to be deleted, before that whoever adds to it.
func (s Store) holdingCollector(ctx context.Context, name string, forGood bool,
	f func(ctx context.Context, tx pgx.Tx, c heldCollector) error,
) error {
	return s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if forGood {
			if _, err := tx.Exec(ctx, holdCollector, name); err != nil {
				return err
			}
		}
		var c heldCollector
		err := tx.QueryRow(ctx, lockCollector, name).Scan(&c.id, &c.state, &c.version)
		if errors.Is(err, pgx.ErrNoRows) {
			return workqueue.ErrNotFound
		}
		if err != nil {
			return err
		}
		return f(ctx, tx, c)
	})
}

// PauseCollector has nothing of a collector flushed any more, with a row in the audit log. It goes on taking
// operations, and what is in progress comes to its end. It returns false when the collector was paused already.
func (s Store) PauseCollector(ctx context.Context, name, actor string) (changed bool, err error) {
	return s.switchCollector(ctx, name, pg.Plain(actor), CollectorPaused)
}

// ResumeCollector takes a pause back. It returns false when there was none.
func (s Store) ResumeCollector(ctx context.Context, name, actor string) (changed bool, err error) {
	return s.switchCollector(ctx, name, pg.Plain(actor), CollectorActive)
}

func (s Store) switchCollector(ctx context.Context, name, actor, to string) (changed bool, err error) {
	verb := "resume"
	if to == CollectorPaused {
		verb = "pause"
	}
	err = s.holdingCollector(ctx, name, false, func(ctx context.Context, tx pgx.Tx, c heldCollector) (err error) {
		if changed = c.state != to; !changed {
			return nil
		}
		if to == CollectorPaused {
			_, err = tx.Exec(ctx, pauseCollector, c.id, actor)
		} else {
			_, err = tx.Exec(ctx, resumeCollector, c.id)
		}
		if err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "collector_" + verb, Subject: name,
			Before: map[string]any{"state": c.state}, After: map[string]any{"state": to}})
	})
	if err != nil {
		return false, fmt.Errorf("%s collector %s: %w", verb, name, err)
	}
	return changed, nil
}

// Drained is what a drain has to flush.
type Drained struct {
	Keys   int64 `json:"keys"`
	Ops    int64 `json:"ops" doc:"operations that need not wait for min_size or max_age any more"`
	Paused bool  `json:"paused" doc:"nothing is flushed until the collector is resumed"`
}

// DrainCollector has everything flushed that waits at the moment, whatever min_size and max_age say, with a row in the
// audit log. What failed keeps its backoff, and rates and limits hold.
func (s Store) DrainCollector(ctx context.Context, name, actor string) (out Drained, err error) {
	err = s.holdingCollector(ctx, name, false, func(ctx context.Context, tx pgx.Tx, c heldCollector) error {
		out = Drained{Paused: c.state == CollectorPaused}
		if _, err := tx.Exec(ctx, drainCollector, c.id); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, waitingOf, c.id).Scan(&out.Keys, &out.Ops); err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: pg.Plain(actor), Name: "collector_drain", Subject: name,
			Detail: map[string]any{"keys": out.Keys, "ops": out.Ops}})
	})
	if err == nil {
		err = s.retime(ctx, name)
	}
	if err != nil {
		return Drained{}, fmt.Errorf("drain collector %s: %w", name, err)
	}
	return out, nil
}

// timingBatch bounds the keys of a transaction that sets their times.
const timingBatch = 2000

const (
	timingOf = `
SELECT id, timing, timed < timing FROM collector WHERE name = $1 AND state <> 'deleting'`

	// retimeKeys sets the times of the keys that follow a key, in the order of the primary key, in which they are locked.
	// Those that are being flushed get theirs when the flush is recorded.
	retimeKeys = `
WITH part AS MATERIALIZED (
    SELECT key_version, key FROM collector_key
    WHERE collector = $1 AND (key_version, key) > ($2, $3::text COLLATE "C")
    ORDER BY key_version, key LIMIT $4 FOR NO KEY UPDATE),
timed AS (
    UPDATE collector_key k
    SET due_at = collector_due(k.fresh, k.oldest_at, k.retry_at, k.held_until, c.min_size, c.max_age, c.drain_at)
    FROM part p, collector c
    WHERE c.id = $1 AND k.collector = $1 AND k.key_version = p.key_version AND k.key = p.key AND k.flush IS NULL
      AND k.due_at IS DISTINCT FROM
          collector_due(k.fresh, k.oldest_at, k.retry_at, k.held_until, c.min_size, c.max_age, c.drain_at))
SELECT key_version, key FROM part ORDER BY key_version DESC, key DESC LIMIT 1`

	markTimed = `UPDATE collector SET timed = $2 WHERE id = $1 AND timed < $2`
)

// retime sets the times of all keys of a collector by its present definition. What is left of it when it ends half-way
// is done by the leader.
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
	if err != nil {
		return fmt.Errorf("set the times of the keys of collector %s: %w", name, err)
	}
	return nil
}

// NotEmptyError is returned for a collector that was to be deleted while it has operations.
type NotEmptyError struct {
	Name        string
	Ops, Parked int64
}

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("collector %s has operations: %d wait, %d parked; drain it and requeue or drop what is parked, or "+
		"delete it with force (--force) and lose them", e.Name, e.Ops, e.Parked)
}

const (
	leftOf = `
SELECT coalesce(sum(fresh + retrying), 0)::bigint, coalesce(sum(parked), 0)::bigint
FROM collector_key WHERE collector = $1`

	markDeleting = `
UPDATE collector SET state = 'deleting', changed_by = $2, changed_at = tranche_now() WHERE id = $1`
)

// DeletedCollector is a collector that was deleted.
type DeletedCollector struct {
	Name   string `json:"name"`
	Ops    int64  `json:"ops" doc:"that waited and are lost"`
	Parked int64  `json:"parked" doc:"that were parked and are lost"`
}

// DeleteCollector deletes a collector, with a row in the audit log. Its name is free at once; the leader deletes what
// belonged to it. Without force the error is a *NotEmptyError while it has operations.
func (s Store) DeleteCollector(ctx context.Context, name string, force bool, actor string) (out DeletedCollector,
	err error,
) {
	err = s.holdingCollector(ctx, name, true, func(ctx context.Context, tx pgx.Tx, c heldCollector) error {
		out = DeletedCollector{Name: name}
		if err := tx.QueryRow(ctx, leftOf, c.id).Scan(&out.Ops, &out.Parked); err != nil {
			return err
		}
		if out.Ops+out.Parked > 0 && !force {
			return &NotEmptyError{Name: name, Ops: out.Ops, Parked: out.Parked}
		}
		if _, err := tx.Exec(ctx, markDeleting, c.id, pg.Plain(actor)); err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: pg.Plain(actor), Name: "collector_delete", Subject: name,
			Before: map[string]any{"version": c.version, "ops": out.Ops, "parked": out.Parked}})
	})
	if err != nil {
		return DeletedCollector{}, fmt.Errorf("delete collector %s: %w", name, err)
	}
	return out, nil
}
