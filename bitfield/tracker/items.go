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

// Added says which groups hold the items of an add: First, First+1, …, all of bitfield.Size items but the last one.
type Added struct {
	FirstGroup int
	Groups     int
	Items      int64
	Existing   bool // the same key added them before
}

// lockTrackerSQL locks the batch row, so that two adds number their groups one at a time, two with the same key see
// each other, and none slips in behind a seal.
const lockTrackerSQL = `
SELECT b.state, b.items
FROM tracker_batch b
WHERE b.id = $1 AND EXISTS (SELECT FROM tracker_service s WHERE s.batch_id = $1 AND s.deleted_at IS NULL)
FOR NO KEY UPDATE OF b`

// addedBeforeSQL runs after the lock, and so sees what the one who had it wrote.
const addedBeforeSQL = `SELECT first_group, groups, items FROM tracker_add WHERE batch_id = $1 AND key = $2`

// noteAddSQL notes what a key added.
const noteAddSQL = `
INSERT INTO tracker_add (batch_id, key, first_group, groups, items) VALUES ($1, $2, $3, $4, $5)`

// AddItems appends n items, all of them pending. With a key it does so once, however often it is called, also after the
// seal; the same key with another n is a *ConflictError. The tracker must be open, or it is a *StateError.
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

// EventKind says how a batch ended. The events are rows of run_event, whose run is the batch, published on
// tranche.event.<kind>.
type EventKind string

// The kinds of event. A batch has one of them, once.
const (
	EventCompleted EventKind = "tracker.completed"
	EventExpired   EventKind = "tracker.expired"
)

// endSQL notes the end of a batch whose row the transaction has locked. As a statement of its own it sees everything
// that was committed before that lock was had, so it counts right; event_id makes it happen once. The payload is the
// event as everybody gets it, and names at most a hundred codes, the most frequent ones.
//
// The id of the event follows from the batch: a database that lost recent commits ends again what it had ended before,
// and who hears of it again hears the same. One that is opened under an id that was another one's before is another
// batch.
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

// queueEnd adds the event of a batch that ended in this transaction, and what follows from it.
func queueEnd(b *pgx.Batch, batch uuid.UUID, kind EventKind) {
	b.Queue(endSQL, batch, string(kind))
}

// SealTracker says that no more items will come. It reports true when this call completed the tracker, which it does
// when nothing is pending, also for one without items. Sealing again changes nothing; an expired one is a *StateError.
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

// shown says expired where a batch is cancelled: nothing else cancels that of a tracker.
func shown(err error) error {
	if state, ok := errors.AsType[*StateError](err); ok && state.State == StateCancelled {
		e := *state
		e.State = StateExpired
		return &e
	}
	return err
}

// markDeletedSQL makes a batch disappear, frees its key, and gives up a webhook that is still owed. The caller has the
// batch row.
const markDeletedSQL = `
UPDATE tracker_service
SET deleted_at = tranche_now(), key = NULL,
    webhook_state = CASE webhook_state WHEN 'due' THEN 'given_up' ELSE webhook_state END
WHERE batch_id = ANY ($1) AND deleted_at IS NULL`

// DeleteTracker deletes a tracker in any state, immediately; it will not complete, and no
// event is sent. Purge deletes its rows.
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

// toPurgeSQL takes no lock: leader work is one at a time.
const toPurgeSQL = `
SELECT batch_id FROM tracker_service WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT 1`

// These delete at most $2 rows of a batch that no one can name any more. A late ack holds its groups, and is waited
// for. Without groups there is no ack, so that what failed goes after them, and nothing is left behind.
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

// Purge deletes at most limit rows of trackers that DeleteTracker or Reap marked, and reports how many; 0 means that
// there is nothing left. Groups go first, in the order in which everybody locks them, and the batch row last.
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
