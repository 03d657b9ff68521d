package collector

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const selectionBatch = 2000

const (
	// Candidates are found without a lock, by the index that fits: parked, failed and waiting, or waiting.
	opCandidates = `
SELECT o.seq, o.key_version, o.key FROM collector_op o
WHERE o.collector = $1 AND o.seq > $2 AND ($3::text[] IS NULL OR o.key = ANY ($3)) AND ($4 = '' OR o.error_code = $4)`
	parkedCandidates  = opCandidates + ` AND o.parked_at IS NOT NULL ORDER BY o.seq LIMIT $5`
	backoffCandidates = opCandidates + `
  AND o.parked_at IS NULL AND o.not_before > tranche_now() ORDER BY o.seq LIMIT $5`
	waitingCandidates = opCandidates + ` AND o.parked_at IS NULL ORDER BY o.seq LIMIT $5`

	// IDs are looked up in any state, with operations that were folded into them in their last attempt.
	namedCandidates = opCandidates + ` AND (o.op_id = ANY ($6) OR o.folded_into = ANY ($6))
  AND (o.parked_at IS NOT NULL OR $7 OR $8 AND o.not_before > tranche_now()) ORDER BY o.seq LIMIT $5`

	// foldedWith finds what operations were folded into, by collector_op_id.
	foldedWith = `
SELECT DISTINCT folded_into FROM collector_op
WHERE collector = $1 AND op_id = ANY ($2) AND folded_into IS NOT NULL`

	// lockKeysOf locks keys in primary key order, before any of their operations is changed.
	lockKeysOf = `
SELECT count(*) FROM (
    SELECT 1 FROM collector_key k
    JOIN (SELECT DISTINCT key_version, key FROM unnest($2::int[], $3::text[]) AS u (key_version, key)) g
        ON k.key_version = g.key_version AND k.key = g.key
    WHERE k.collector = $1 ORDER BY k.key_version, k.key FOR NO KEY UPDATE OF k) locked`

	// requeueOps resets operations to untried, in their old place in the order. The key is due immediately.
	requeueOps = `
WITH old AS (
    SELECT seq, parked_at IS NOT NULL AS parked FROM collector_op
    WHERE seq = ANY ($2) AND (parked_at IS NOT NULL OR not_before > tranche_now())),
again AS (
    UPDATE collector_op o SET parked_at = NULL, not_before = NULL, attempts = 0, retry_alone = false
    FROM old WHERE o.seq = old.seq
    RETURNING o.key_version, o.key, o.added_at, o.priority, old.parked),
keys AS (
    SELECT key_version, key, count(*)::int AS ops, (count(*) FILTER (WHERE parked))::int AS parked,
           min(added_at) AS oldest, max(priority) AS priority
    FROM again GROUP BY key_version, key)
UPDATE collector_key k
SET untried = k.untried + g.ops, parked = k.parked - g.parked, retrying = k.retrying - (g.ops - g.parked),
    oldest_at = least(k.oldest_at, g.oldest), priority = greatest(k.priority, g.priority), held_until = NULL,
    retry_at = tranche_now(), due_at = tranche_now()
FROM keys g
WHERE k.collector = $1 AND k.key_version = g.key_version AND k.key = g.key
RETURNING g.ops`

	// unsettle makes claims search for older keys again.
	unsettle = `
UPDATE collector SET drained_key_version = least(drained_key_version, $2) WHERE id = $1 AND drained_key_version > $2`

	// dropOps frees keys held by an operation in backoff, and otherwise leaves their times: an empty flush corrects them.
	dropOps = `
WITH gone AS (
    DELETE FROM collector_op WHERE seq = ANY ($2) AND (parked_at IS NOT NULL OR $3)
    RETURNING key_version, key, parked_at IS NOT NULL AS parked, not_before IS NULL AS untried),
keys AS (
    SELECT key_version, key, count(*)::int AS ops, (count(*) FILTER (WHERE parked))::int AS parked,
           (count(*) FILTER (WHERE untried AND NOT parked))::int AS untried,
           bool_or(NOT untried AND NOT parked) AS frees
    FROM gone GROUP BY key_version, key)
UPDATE collector_key k
SET untried = k.untried - g.untried, parked = k.parked - g.parked,
    retrying = k.retrying - (g.ops - g.parked - g.untried),
    oldest_at = CASE WHEN k.untried > g.untried THEN k.oldest_at END,
    retry_at = CASE WHEN k.retrying > g.ops - g.parked - g.untried THEN k.retry_at END,
    held_until = CASE WHEN NOT g.frees THEN k.held_until END,
    due_at = CASE WHEN k.untried - g.untried + k.retrying - (g.ops - g.parked - g.untried) = 0 THEN NULL
        WHEN g.frees THEN collector_due(k.untried - g.untried, k.oldest_at, k.retry_at, NULL, c.min_size, c.max_age,
            c.drain_at) ELSE k.due_at END
FROM keys g CROSS JOIN collector c
WHERE c.id = $1 AND k.collector = $1 AND k.key_version = g.key_version AND k.key = g.key
RETURNING g.ops`

	dropKeys = `
DELETE FROM collector_key k USING unnest($2::int[], $3::text[]) AS g (key_version, key)
WHERE k.collector = $1 AND k.key_version = g.key_version AND k.key = g.key
  AND k.untried = 0 AND k.retrying = 0 AND k.parked = 0 AND k.flush IS NULL`
)

// RequeueOps retries parked operations and those in backoff immediately, with all attempts and in their old place in
// the order. It returns their number. Each transaction writes an audit entry.
func (s Store) RequeueOps(ctx context.Context, name string, sel OpsSelection, actor string) (int64, error) {
	return s.changeOps(ctx, opsChange{name: name, sel: sel, actor: pg.Plain(actor), verb: "requeue",
		passes: []string{parkedCandidates, backoffCandidates}})
}

// DropOps deletes parked operations, or all waiting ones as well, and returns their number. One that is being
// flushed is deleted, too, and may have been executed. Each transaction writes an audit entry.
func (s Store) DropOps(ctx context.Context, name string, sel OpsSelection, actor string) (int64, error) {
	change := opsChange{name: name, sel: sel, actor: pg.Plain(actor), verb: "drop", drop: true,
		passes: []string{parkedCandidates}}
	if sel.Waiting {
		change.passes = append(change.passes, waitingCandidates)
	}
	return s.changeOps(ctx, change)
}

type opsChange struct {
	name   string
	sel    OpsSelection
	actor  string
	verb   string
	drop   bool
	passes []string // statements that find candidates

	id  int32
	ids []string // those of sel, and of the operations that they were folded into
}

func (s Store) changeOps(ctx context.Context, c opsChange) (total int64, err error) {
	if !c.sel.All && len(c.sel.Keys)+len(c.sel.IDs) == 0 && c.sel.Code == "" {
		return 0, workqueue.BadSetting("say which operations: all, or by keys, ids or an error code")
	}
	if slices.ContainsFunc(slices.Concat(c.sel.Keys, c.sel.IDs, []string{c.sel.Code}), func(text string) bool {
		return !pg.ValidText(text)
	}) {
		return 0, nil // no operation can have such an ID
	}
	if c.id, err = s.collectorID(ctx, c.name); err != nil {
		return 0, err
	}
	if len(c.sel.IDs) > 0 {
		c.passes = []string{namedCandidates}
		into, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[string], foldedWith, c.id, c.sel.IDs)
		if c.ids = slices.Concat(c.sel.IDs, into); err != nil {
			return 0, fmt.Errorf("%s operations of collector %s: %w", c.verb, c.name, err)
		}
	}
	for _, pass := range c.passes {
		n, err := s.changeAll(ctx, &c, pass)
		total += n
		if err != nil {
			return total, fmt.Errorf("%s operations of collector %s: %w", c.verb, c.name, err)
		}
	}
	return total, nil
}

func (s Store) changeAll(ctx context.Context, c *opsChange, pass string) (total int64, err error) {
	for after := int64(0); ; {
		found, err := s.candidates(ctx, c, pass, after)
		if err != nil || len(found.seqs) == 0 {
			return total, err
		}
		var n int64
		err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			n, err = c.change(ctx, tx, &found)
			return err
		})
		if err != nil {
			return total, err
		}
		total += n
		if len(found.seqs) < selectionBatch {
			return total, nil
		}
		after = found.seqs[len(found.seqs)-1]
	}
}

type foundOps struct {
	seqs       []int64
	numberings []int32
	keys       []string
}

func (s Store) candidates(ctx context.Context, c *opsChange, pass string, after int64) (found foundOps, err error) {
	args := []any{c.id, after, nilIfEmpty(c.sel.Keys), c.sel.Code, selectionBatch}
	if len(c.sel.IDs) > 0 {
		args = append(args, c.ids, c.drop && c.sel.Waiting, !c.drop)
	}
	var seq int64
	var keyVersion int32
	var key string
	err = pg.Each(pg.Rows(ctx, s.db.Pool, pass, args...), []any{&seq, &keyVersion, &key}, func() {
		found.seqs = append(found.seqs, seq)
		found.numberings = append(found.numberings, keyVersion)
		found.keys = append(found.keys, key)
	})
	return found, err
}

func nilIfEmpty(list []string) any {
	if len(list) == 0 {
		return nil
	}
	return list
}

func (c *opsChange) change(ctx context.Context, tx pgx.Tx, found *foundOps) (n int64, err error) {
	if _, err := tx.Exec(ctx, lockKeysOf, c.id, found.numberings, found.keys); err != nil {
		return 0, err
	}
	statement, args := requeueOps, []any{c.id, found.seqs}
	if c.drop {
		statement, args = dropOps, []any{c.id, found.seqs, c.sel.Waiting}
	}
	ops := 0
	err = pg.Each(pg.Rows(ctx, tx, statement, args...), []any{&ops}, func() { n += int64(ops) })
	switch {
	case err != nil || n == 0:
		return 0, err
	case c.drop:
		_, err = tx.Exec(ctx, dropKeys, c.id, found.numberings, found.keys)
	default:
		_, err = tx.Exec(ctx, unsettle, c.id, slices.Min(found.numberings))
	}
	if err != nil {
		return 0, err
	}
	return n, ledger.AuditChange(ctx, tx, ledger.Action{Actor: c.actor, Name: "collector_" + c.verb, Subject: c.name,
		Detail: map[string]any{"ops": n, "all": c.sel.All, "keys": some(c.sel.Keys), "ids": some(c.sel.IDs),
			"code": c.sel.Code, "waiting": c.sel.Waiting}})
}

func some(list []string) []string { return list[:min(len(list), 20)] }
