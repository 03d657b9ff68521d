package service

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
)

// Added says which groups hold the items of an Add: First, First+1, …, all of bitfield.Size items but the last one.
type Added struct {
	FirstGroup int
	Groups     int
	Items      int64
	Existing   bool // the same key added them before
}

// lockBatchSQL locks the batch row, so that two adds number their groups one after the other, two with the same key see
// each other, and none slips in behind a seal.
const lockBatchSQL = `
SELECT b.state, b.groups, b.items
FROM tracker_batch b
WHERE b.id = $1 AND EXISTS (SELECT FROM tracker_service s WHERE s.batch_id = $1 AND s.deleted_at IS NULL)
FOR NO KEY UPDATE OF b`

// addedBeforeSQL runs after the lock, and so sees what the one who had it wrote.
const addedBeforeSQL = `SELECT first_group, groups, items FROM tracker_add WHERE batch_id = $1 AND key = $2`

// addItemsSQL writes the groups $2 to $2+$3-1, which hold $4 items together, and what the locked batch row says of
// them. All groups are full but the last; a full mask of n bits is the complement of n zeros shifted in from the left.
const addItemsSQL = `
WITH batch AS (
    UPDATE tracker_batch
    SET groups = groups + $3, open_groups = open_groups + $3, items = items + $4, active_at = tranche_now()
    WHERE id = $1
), noted AS (
    INSERT INTO tracker_add (batch_id, key, first_group, groups, items)
    SELECT $1, $5::text, $2, $3, $4 WHERE $5::text <> ''
)
INSERT INTO tracker_group (batch_id, grp, size, pending)
SELECT $1::uuid, $2::integer + i, 8192, ~B'0'::bit(8192) FROM generate_series(0, $3::integer - 2) AS i
UNION ALL
SELECT $1::uuid, $2::integer + $3::integer - 1, $6::integer, ~(~B'0'::bit(8192) >> $6::integer)`

// Add appends n items, all of them pending. With a key it does so once, however often it is called, also after the
// seal; the same key with another n is a *ConflictError. The batch must be open, or it is a *tracker.StateError.
func Add(ctx context.Context, tx pgx.Tx, batch uuid.UUID, n int64, key string) (Added, error) {
	return addBehind(ctx, tx, lockBatchSQL, batch, n, key)
}

func addBehind(ctx context.Context, tx pgx.Tx, lock string, batch uuid.UUID, n int64, key string) (Added, error) {
	const op = "add items to"
	if n < 1 || n > MaxAdd {
		return Added{}, &RequestError{
			Field: "items", Problem: fmt.Sprintf("is %d; it must be from 1 to %d", n, int64(MaxAdd)),
		}
	}
	if err := text("key", key, MaxText, false); err != nil {
		return Added{}, err
	}
	var (
		state  tracker.State
		groups int
		items  int64
	)
	err := tx.QueryRow(ctx, lock, batch).Scan(&state, &groups, &items)
	if errors.Is(err, pgx.ErrNoRows) {
		return Added{}, &NotFoundError{Batch: batch}
	}
	if err != nil {
		return Added{}, wrap(op, batch, err)
	}
	if before, err := addedBefore(ctx, tx, batch, n, key); err != nil || before.Existing {
		return before, err
	}
	switch {
	case state != tracker.StateOpen:
		return Added{}, shown(&tracker.StateError{Batch: batch, State: state, Op: op, Want: string(tracker.StateOpen)})
	case items+n > MaxItems:
		return Added{}, &RequestError{Field: "items", Problem: fmt.Sprintf(
			"is %d, and tracker %s has %d; a tracker holds at most %d", n, batch, items, int64(MaxItems))}
	}
	added := Added{FirstGroup: groups, Groups: int((n + bitfield.Size - 1) / bitfield.Size), Items: n}
	last := n - int64(added.Groups-1)*bitfield.Size
	_, err = tx.Exec(ctx, addItemsSQL, batch, added.FirstGroup, added.Groups, n, key, last)
	return added, wrap(op, batch, err)
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
		return Added{}, &ConflictError{Batch: batch, Op: "add", Key: key, Field: "items",
			Was: strconv.FormatInt(before.Items, 10), Is: strconv.FormatInt(n, 10)}
	}
	return before, nil
}
