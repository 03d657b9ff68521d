package service

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// markDeletedSQL makes a batch disappear, frees its key, and gives up a webhook that is still owed. The caller has the
// batch row.
const markDeletedSQL = `
UPDATE tracker_service
SET deleted_at = tranche_now(), key = NULL,
    webhook_state = CASE webhook_state WHEN 'due' THEN 'given_up' ELSE webhook_state END
WHERE batch_id = ANY ($1) AND deleted_at IS NULL`

// Delete makes a batch disappear at once, whatever its state; it will not complete, and nothing is told to anybody. Its
// rows are deleted by Purge. An unknown one is a *NotFoundError.
func Delete(ctx context.Context, tx pgx.Tx, batch uuid.UUID) error {
	var (
		state  tracker.State
		groups int
		items  int64
	)
	if err := tx.QueryRow(ctx, lockBatchSQL, batch).Scan(&state, &groups, &items); err != nil {
		return notFound("delete", batch, err)
	}
	if state != tracker.StateCompleted {
		if err := tracker.Cancel(ctx, tx, batch); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, markDeletedSQL, []uuid.UUID{batch})
	return wrap("delete", batch, err)
}

// toPurgeSQL takes no lock: leader work is one at a time.
const toPurgeSQL = `
SELECT batch_id FROM tracker_service WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT 1`

// These delete at most $2 rows of a batch that nobody can name any more. A late ack holds its groups, and is waited
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

// Purge deletes at most limit rows of batches that Delete or Reap marked, and reports how many; 0 means that there is
// nothing left. Groups go first, in the order in which everybody locks them, and the batch row last.
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
		if _, err := tx.Exec(ctx, dropOpenedSQL, batch); err != nil {
			return rows, wrap("purge", batch, err)
		}
		rows++
	}
	return rows, nil
}
