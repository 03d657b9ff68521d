package tracker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
)

// Added is the groups of added items: FirstGroup and the following, each of bitfield.Size items except the last.
type Added struct {
	FirstGroup int
	Groups     int
	Items      int64
	Existing   bool // the same key added them before
}

// lockTrackerSQL locks the batch row: it serializes adds, also of the same key, and excludes adds after a seal.
const lockTrackerSQL = `
SELECT b.state, b.items
FROM tracker_batch b
WHERE b.id = $1 AND EXISTS (SELECT FROM tracker_service s WHERE s.batch_id = $1 AND s.deleted_at IS NULL)
FOR NO KEY UPDATE OF b`

// addedBeforeSQL runs after the lock, so it sees what the previous holder wrote.
const addedBeforeSQL = `SELECT first_group, groups, items FROM tracker_add WHERE batch_id = $1 AND key = $2`

const noteAddSQL = `
INSERT INTO tracker_add (batch_id, key, first_group, groups, items) VALUES ($1, $2, $3, $4, $5)`

// AddItems appends n pending items. With a key it does so once, and may be repeated, even after the seal; the same
// key with another n is a *ConflictError. The tracker must be open, or it is a *StateError.
func AddItems(ctx context.Context, tx pgx.Tx, batch uuid.UUID, n int64, key string) (Added, error) {
	const op = "add items to"
	if n < 1 || n > MaxAdd {
		return Added{}, &RequestError{
			Field: "items", Problem: fmt.Sprintf("is %d; it must be from 1 to %d", n, int64(MaxAdd)),
		}
	}
	if err := CheckText("key", key, MaxText); err != nil {
		return Added{}, err
	}
	var (
		state State
		items int64
	)
	if err := tx.QueryRow(ctx, lockTrackerSQL, batch).Scan(&state, &items); err != nil {
		return Added{}, notFound(op, batch, err)
	}
	if before, err := addedBefore(ctx, tx, batch, n, key); err != nil || before.Existing {
		return before, err
	}
	if state == StateOpen && items+n > MaxItems {
		return Added{}, &RequestError{Field: "items", Problem: fmt.Sprintf(
			"is %d, and tracker %s has %d; a tracker holds at most %d", n, batch, items, int64(MaxItems))}
	}
	sizes := slices.Repeat([]int{bitfield.Size}, int((n+bitfield.Size-1)/bitfield.Size))
	sizes[len(sizes)-1] = int((n-1)%bitfield.Size) + 1
	first, err := AddGroups(ctx, tx, batch, sizes)
	if err != nil {
		return Added{}, shown(err)
	}
	if key != "" {
		_, err = tx.Exec(ctx, noteAddSQL, batch, key, first, len(sizes), n)
	}
	return Added{FirstGroup: first, Groups: len(sizes), Items: n}, wrap(op, batch, err)
}

func addedBefore(ctx context.Context, tx pgx.Tx, batch uuid.UUID, n int64, key string) (Added, error) {
	if key == "" {
		return Added{}, nil
	}
	before := Added{Existing: true}
	err := tx.QueryRow(ctx, addedBeforeSQL, batch, key).Scan(&before.FirstGroup, &before.Groups, &before.Items)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Added{}, nil
	case err != nil:
		return Added{}, wrap("add items to", batch, err)
	case before.Items != n:
		return Added{}, &ConflictError{Batch: batch, Key: key, Field: "items",
			Was: strconv.FormatInt(before.Items, 10), Is: strconv.FormatInt(n, 10)}
	}
	return before, nil
}

// EventKind is how a batch ended. Events are rows of run_event (run = batch), published on tranche.event.<kind>.
type EventKind string

// Kinds of events. A batch has one of them, once.
const (
	EventCompleted EventKind = "tracker.completed"
	EventExpired   EventKind = "tracker.expired"
)

// endSQL records the end of a batch whose row the transaction has locked. As a separate statement it sees all that
// was committed before the lock; event_id makes it happen once. The payload is the published event, with at most a
// hundred codes, the most frequent.
//
// The event ID is derived from the batch: a database that lost recent commits ends the batch again with the same
// event. created_at distinguishes a later batch under the same ID.
const endSQL = `
WITH code AS MATERIALIZED (
    SELECT code, sum(bit_count(mask)) AS items FROM tracker_failed WHERE batch_id = $1 GROUP BY code
), top AS (
    SELECT coalesce(jsonb_object_agg(code, items), '{}') AS codes
    FROM (SELECT code, items FROM code ORDER BY items DESC, code LIMIT 100) c
), total AS (
    SELECT b.items, coalesce((SELECT sum(items) FROM code), 0) AS failed,
           CASE $2::text WHEN 'tracker.completed' THEN 0 ELSE coalesce((
               SELECT sum(bit_count(g.pending)) FROM tracker_group g WHERE g.batch_id = $1), 0) END AS pending,
           encode(substr(sha256(convert_to(concat_ws(' ', b.id, extract(epoch FROM b.created_at), $2::text), 'UTF8')),
               1, 16), 'hex')::uuid AS event_id
    FROM tracker_batch b WHERE b.id = $1
), ended AS (
    UPDATE tracker_service s
    SET event_id        = t.event_id,
        event           = jsonb_build_object('id', t.event_id, 'kind', $2::text, 'at', tranche_now(),
                              'batch', s.batch_id, 'owner', s.owner, 'key', s.key, 'items', t.items,
                              'done', t.items - t.failed - t.pending, 'failed', t.failed, 'pending', t.pending,
                              'codes', top.codes),
        active_at       = CASE $2::text WHEN 'tracker.completed' THEN tranche_now() ELSE s.active_at END,
        expired_at      = CASE $2::text WHEN 'tracker.expired' THEN tranche_now() END,
        reap_at         = tranche_now() + s.keep,
        webhook_state   = CASE WHEN s.webhook_url IS NULL THEN 'none' ELSE 'due' END,
        webhook_due_at  = tranche_now(),
        webhook_next_at = tranche_now()
    FROM total t, top
    WHERE s.batch_id = $1 AND s.event_id IS NULL AND s.deleted_at IS NULL
    RETURNING s.event_id, s.event
)
INSERT INTO run_event (id, run_id, generation, kind, payload) SELECT event_id, $1, 1, $2, event FROM ended`

// queueEnd queues the event, and its consequences, of a batch that ended in this transaction.
func queueEnd(b *pgx.Batch, batch uuid.UUID, kind EventKind) {
	b.Queue(endSQL, batch, string(kind))
}

// SealTracker closes a tracker to new items. It returns true if this call completed the tracker, because nothing is
// pending; that includes trackers without items. Sealing again has no effect. An expired tracker is a *StateError.
func SealTracker(ctx context.Context, tx pgx.Tx, batch uuid.UUID) (completed bool, err error) {
	if err := known(ctx, tx, batch); err != nil {
		return false, err
	}
	if completed, err = Seal(ctx, tx, batch); err != nil {
		return false, shown(err)
	}
	after := &pgx.Batch{}
	if completed {
		queueEnd(after, batch, EventCompleted)
	} else {
		after.Queue(touchSQL, batch)
	}
	return completed, wrap("seal", batch, tx.SendBatch(ctx, after).Close())
}

// shown replaces cancelled by expired, the only reason why a tracker's batch is cancelled.
func shown(err error) error {
	if state, ok := errors.AsType[*StateError](err); ok && state.State == StateCancelled {
		e := *state
		e.State = StateExpired
		return &e
	}
	return err
}

// markDeletedSQL hides a batch, frees its key, and abandons a pending webhook. The caller holds the batch row.
const markDeletedSQL = `
UPDATE tracker_service
SET deleted_at = tranche_now(), key = NULL,
    webhook_state = CASE webhook_state WHEN 'due' THEN 'given_up' ELSE webhook_state END
WHERE batch_id = ANY ($1) AND deleted_at IS NULL`

// DeleteTracker deletes a tracker in any state. It will not complete and sends no event. Purge removes its rows.
func DeleteTracker(ctx context.Context, tx pgx.Tx, batch uuid.UUID) error {
	var (
		state State
		items int64
	)
	if err := tx.QueryRow(ctx, lockTrackerSQL, batch).Scan(&state, &items); err != nil {
		return notFound("delete", batch, err)
	}
	if state != StateCompleted {
		if err := Cancel(ctx, tx, batch); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, markDeletedSQL, []uuid.UUID{batch})
	return wrap("delete", batch, err)
}

// toPurgeSQL takes no lock: only the leader purges.
const toPurgeSQL = `
SELECT batch_id FROM tracker_service WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT 1`

// These delete at most $2 rows of a deleted batch. A late ack holds its groups and is waited for. Without groups
// there are no acks, so failed items are deleted after groups.
const (
	purgeFailedSQL = `
DELETE FROM tracker_failed f
USING (SELECT grp, code FROM tracker_failed WHERE batch_id = $1 ORDER BY grp, code LIMIT $2) d
WHERE f.batch_id = $1 AND f.grp = d.grp AND f.code = d.code`
	purgeAddsSQL = `
DELETE FROM tracker_add a
USING (SELECT key FROM tracker_add WHERE batch_id = $1 ORDER BY key LIMIT $2) d
WHERE a.batch_id = $1 AND a.key = d.key`
	purgeGroupsSQL = `
DELETE FROM tracker_group g
USING (SELECT grp FROM tracker_group WHERE batch_id = $1 ORDER BY grp LIMIT $2 FOR UPDATE) d
WHERE g.batch_id = $1 AND g.grp = d.grp`
)

// Purge deletes at most limit rows of deleted trackers and returns the number; 0 means that none remain. Groups go
// first, in lock order, and the batch row last.
func Purge(ctx context.Context, tx pgx.Tx, limit int) (rows int, err error) {
	for rows < limit {
		var batch uuid.UUID
		err := tx.QueryRow(ctx, toPurgeSQL).Scan(&batch)
		if errors.Is(err, pgx.ErrNoRows) {
			return rows, nil
		}
		if err != nil {
			return rows, wrap("purge", batch, err)
		}
		for _, sql := range []string{purgeGroupsSQL, purgeFailedSQL, purgeAddsSQL} {
			tag, err := tx.Exec(ctx, sql, batch, limit-rows)
			if err != nil {
				return rows, wrap("purge", batch, err)
			}
			if rows += int(tag.RowsAffected()); rows >= limit {
				return rows, nil
			}
		}
		if _, err := tx.Exec(ctx, dropBatchSQL, batch); err != nil {
			return rows, wrap("purge", batch, err)
		}
		rows++
	}
	return rows, nil
}
