// Package tracker tracks which items of a fan-out are pending, and reports exactly once that none is.
//
// A batch is opened, gets groups of up to 8192 items (one bit per item, set while it is pending), and is sealed
// after its last group. Acks clear bits by mask, in any order and possibly repeatedly. The last call, the seal or
// the ack of the last item, completes the batch, and only it reports that.
//
//	open ──Seal──▶ sealed ──last ack──▶ completed
//	  └──Seal of a batch with nothing pending──▶ completed ──Rearm──▶ sealed, next generation
//	open, sealed ──Cancel──▶ cancelled
//
// Each run has such a batch. A tracker is a batch opened by an application (OpenTracker, AddItems, AckItems,
// SealTracker, DeleteTracker), with a row in tracker_service. It adds idempotent opens and adds, items failed with a
// code, one event at its end, and expiry:
//
//	open ──SealTracker──▶ sealed ──last ack──▶ completed ──after Keep──▶ deleted
//	  └─idle for OpenIdle──▶ expired ◀──idle for SealedIdle─┘ ──after Keep──▶ deleted
//
// # Guarantees
//
// Exactly one call, a SealTracker or AckItems, completes a tracker and reports it; its transaction inserts the event
// into the outbox run_event, once. The first committed ack decides whether an item is done or failed; later ones
// change nothing. Adding with a used key adds nothing and returns the same groups. For the functions on trackers, a
// run's batch and a missing tracker are a *NotFoundError.
//
// All functions work in the caller's transaction, so an ack commits together with the result that it acknowledges. A
// function on batches that returns an error of this package has changed nothing; after an error of one on trackers,
// the transaction must be rolled back.
//
// # Locks
//
// A transaction locks group rows first, in ascending order, then the batch row. Seal, AddGroups and Cancel lock only
// the batch row. An ack locks it only if a group became empty, so acks share no hot row. Rearm locks both. Acks of
// several batches in one transaction must be in ascending order of batch ID, and adds and seals must follow them.
//
// Rows of tracker_service come last, also by ascending ID. An ack writes one at most once a second, and skips it if
// it is locked. A row of tracker_failed is written only by the holder of its group. The transaction must be READ
// COMMITTED (the default) or be retried on serialization failures.
//
// Completion is exact because Seal and the ack that empties a group both write the batch row: the second waits for
// the first and sees its result.
//
// The package does not retry, publishes nothing and starts no goroutines.
package tracker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
)

// State is the state of a batch.
type State string

// States of a batch.
const (
	StateOpen      State = "open"      // groups may be added
	StateSealed    State = "sealed"    // closed to new groups, some items pending
	StateCompleted State = "completed" // closed to new groups, no items pending
	StateCancelled State = "cancelled" // accepts acks but never completes
)

// rowsOf returns the rows of a query, for functions of pgx that close them and return the query's error.
func rowsOf(ctx context.Context, q Querier, sql string, args ...any) pgx.Rows {
	rows, _ := q.Query(ctx, sql, args...)
	return rows
}

// Querier is a pool, connection or transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// openSQL waits only for a concurrent open of the same ID, and then finds its row.
const openSQL = `INSERT INTO tracker_batch (id, owner, state) VALUES ($1, $2, 'open') ON CONFLICT (id) DO NOTHING`

// Open creates an empty batch. owner is free text. A taken ID is ErrExists.
func Open(ctx context.Context, tx pgx.Tx, id uuid.UUID, owner string) error {
	tag, err := tx.Exec(ctx, openSQL, id, owner)
	if err != nil {
		return fmt.Errorf("open tracker batch %s: %w", id, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("open tracker batch %s: %w", id, ErrExists)
	}
	return nil
}

// sealSQL locks the batch row and decides by its current state. An ack that empties a group writes the same row, so
// either this statement sees its decrement, or the ack sees this state. It locks no group rows.
const sealSQL = `
UPDATE tracker_batch b
SET state        = CASE WHEN b.open_groups = 0 THEN 'completed' ELSE 'sealed' END,
    sealed_at    = tranche_now(),
    completed_at = CASE WHEN b.open_groups = 0 THEN tranche_now() END,
    active_at    = tranche_now()
WHERE b.id = $1 AND b.state = 'open'
RETURNING b.state = 'completed'`

// Seal closes a batch to new groups. It returns true if this call completed the batch, because no item is pending;
// that includes batches without groups. Sealing again has no effect and returns false. A cancelled batch is a
// *StateError.
func Seal(ctx context.Context, tx pgx.Tx, id uuid.UUID) (completed bool, err error) {
	err = tx.QueryRow(ctx, sealSQL, id).Scan(&completed)
	if !errors.Is(err, pgx.ErrNoRows) {
		return completed, wrap("seal", id, err)
	}
	return false, checkState(ctx, tx, "seal", id, "open", StateSealed, StateCompleted)
}

// cancelSQL locks the batch row.
const cancelSQL = `
UPDATE tracker_batch SET state = 'cancelled', active_at = tranche_now()
WHERE id = $1 AND state IN ('open', 'sealed')`

// Cancel ends an incomplete batch: it accepts no groups and never completes. Cancelling again has no effect. A
// completed batch is a *StateError.
func Cancel(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	tag, err := tx.Exec(ctx, cancelSQL, id)
	if err != nil || tag.RowsAffected() > 0 {
		return wrap("cancel", id, err)
	}
	return checkState(ctx, tx, "cancel", id, "open or sealed", StateCancelled)
}

// reopenSQL locks the batch row.
const reopenSQL = `
UPDATE tracker_batch SET state = 'sealed', generation = generation + 1, active_at = tranche_now(),
    sealed_at = coalesce(sealed_at, tranche_now())
WHERE id = $1 AND state = 'cancelled' AND open_groups > 0`

// Reopen undoes Cancel: the batch is sealed, with the same pending items, in the next generation. A batch that is not
// cancelled, or has nothing pending, is a *StateError.
func Reopen(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	tag, err := tx.Exec(ctx, reopenSQL, id)
	if err != nil || tag.RowsAffected() > 0 {
		return wrap("reopen", id, err)
	}
	return checkState(ctx, tx, "reopen", id, "cancelled, with items that are pending")
}

// addGroupsSQL locks the batch row before inserting, which serializes the numbering of concurrent adds and excludes
// adds after a seal. A full mask of n bits is the complement of n zeros shifted in from the left.
const addGroupsSQL = `
WITH batch AS (
    UPDATE tracker_batch b
    SET groups      = b.groups + cardinality($2::integer[]),
        open_groups = b.open_groups + cardinality($2::integer[]),
        items       = b.items + (SELECT sum(size) FROM unnest($2::integer[]) AS s(size)),
        active_at   = tranche_now()
    WHERE b.id = $1 AND b.state = 'open'
    RETURNING b.id, b.groups - cardinality($2::integer[]) AS first
), added AS (
    INSERT INTO tracker_group (batch_id, grp, size, pending)
    SELECT batch.id, batch.first + s.place - 1, s.size, ~(~B'0'::bit(8192) >> s.size)
    FROM batch, unnest($2::integer[]) WITH ORDINALITY AS s(size, place)
)
SELECT first FROM batch`

// AddGroups appends groups of the given sizes, 1 to bitfield.Size, with all items pending, and returns the first
// group's number. The batch must be open, or it is a *StateError. It is not idempotent: call it in the transaction
// that also records the caller's progress.
func AddGroups(ctx context.Context, tx pgx.Tx, id uuid.UUID, sizes []int) (first int, err error) {
	const op = "add groups to"
	list, err := checkSizes(op, id, sizes)
	if err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, addGroupsSQL, id, list).Scan(&first)
	if !errors.Is(err, pgx.ErrNoRows) {
		return first, wrap(op, id, err)
	}
	return 0, checkState(ctx, tx, op, id, "open")
}

func checkSizes(op string, id uuid.UUID, sizes []int) ([]int32, error) {
	if len(sizes) == 0 {
		return nil, wrap(op, id, ErrNothing)
	}
	list := make([]int32, len(sizes))
	for i, size := range sizes {
		if size < 1 || size > bitfield.Size {
			return nil, fmt.Errorf("%s tracker batch %s: size %d of the list is %d; a group holds 1 to %d items", op, id, i,
				size, bitfield.Size)
		}
		list[i] = int32(size) // checked above
	}
	return list, nil
}

// openSealedSQL creates batches with all their groups. They are not visible to others, so it waits for nothing.
const openSealedSQL = `
WITH batch AS (
    INSERT INTO tracker_batch (id, owner, state, groups, open_groups, items, sealed_at)
    SELECT b.id, b.owner, 'sealed', b.groups, b.groups, b.items, tranche_now()
    FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::bigint[]) AS b (id, owner, groups, items)
)
INSERT INTO tracker_group (batch_id, grp, size, pending)
SELECT g.batch, g.grp, g.size, ~(~B'0'::bit(8192) >> g.size)
FROM unnest($5::uuid[], $6::integer[], $7::integer[]) AS g (batch, grp, size)`

// QueueSealed is [Open], [AddGroups] and [Seal] in one statement of a caller's pgx.Batch, for a batch known
// completely. A taken ID is a PostgreSQL error. The statement takes arrays, so that it can create several batches.
func QueueSealed(b *pgx.Batch, id uuid.UUID, owner string, sizes []int) error {
	list, err := checkSizes("open", id, sizes)
	if err != nil {
		return err
	}
	of, places, items := make([]uuid.UUID, len(list)), make([]int32, len(list)), int64(0)
	for i, size := range list {
		of[i], places[i], items = id, int32(i), items+int64(size)
	}
	b.Queue(openSealedSQL, []uuid.UUID{id}, []string{owner}, []int{len(list)}, []int64{items}, of, places, list)
	return nil
}

// rearmSQL locks the group rows and then the batch row. A cancelled batch, or a mask that fits no group, changes
// nothing. As in ackSQL, new values come from the locked rows only.
const rearmSQL = lockGroupsSQL + `, batch AS MATERIALIZED (
    SELECT b.id, b.state, b.groups, b.open_groups, b.generation,
           b.state <> 'cancelled' AND NOT EXISTS (SELECT FROM bad) AS ready
    FROM tracker_batch b
    WHERE b.id = $1[1] AND (SELECT count(*) FROM locked) >= 0
    FOR NO KEY UPDATE
), moved AS (
    UPDATE tracker_group g
    SET pending = l.pending | l.mask
    FROM locked l, batch
    WHERE g.batch_id = batch.id AND g.grp = ANY ($2::integer[]) AND g.grp = l.grp
      AND batch.ready AND (l.mask & ~l.pending) <> B'0'::bit(8192)
    RETURNING l.pending = B'0'::bit(8192) AS reopened
), armed AS (
    UPDATE tracker_batch b
    SET groups       = l.groups,
        open_groups  = l.open_groups + m.reopened,
        generation   = l.generation + 1,
        state        = CASE l.state WHEN 'open' THEN 'open' ELSE 'sealed' END,
        completed_at = NULL,
        active_at    = tranche_now()
    FROM batch l, (SELECT count(*)::integer AS reopened FROM moved WHERE reopened) m
    WHERE b.id = $1[1] AND l.ready
    RETURNING b.generation
)
SELECT batch.state, batch.groups, armed.generation, bad.grp, bad.above, bad.size
FROM batch LEFT JOIN armed ON true LEFT JOIN bad ON true`

// Rearm makes items pending again and returns the next generation. A completed batch becomes sealed and will complete
// and report again; sealed and open batches keep their state. Items already pending are unchanged.
//
// A cancelled batch is a *StateError, a mask that fits no group a *GroupError, an unknown batch ErrNotFound. Empty
// masks are ErrNothing.
func Rearm(ctx context.Context, tx pgx.Tx, id uuid.UUID, items []Ack) (generation int, err error) {
	const op = "rearm"
	m, err := mergeMasks(id, items)
	if err != nil {
		return 0, err
	}
	if !slices.ContainsFunc(m.sets, func(s bitfield.Set) bool { return !s.Empty() }) {
		return 0, wrap(op, id, ErrNothing)
	}
	var (
		state State
		next  *int
		bad   misfit
	)
	err = tx.QueryRow(ctx, rearmSQL, m.args()...).Scan(&state, &bad.groups, &next, &bad.group, &bad.above, &bad.size)
	switch {
	case err != nil:
		return 0, notFound(op, id, err)
	case state == StateCancelled:
		return 0, &StateError{Batch: id, State: state, Op: op, Want: "open, sealed or completed"}
	case next == nil:
		return 0, wrap(op, id, bad.err(id))
	}
	return *next, nil
}

const stateSQL = `SELECT state FROM tracker_batch WHERE id = $1`

// checkState explains why a conditional update matched no row. It returns nil in the harmless states.
func checkState(ctx context.Context, q Querier, op string, id uuid.UUID, want string, harmless ...State) error {
	var state State
	if err := q.QueryRow(ctx, stateSQL, id).Scan(&state); err != nil {
		return notFound(op, id, err)
	}
	if slices.Contains(harmless, state) {
		return nil
	}
	return &StateError{Batch: id, State: state, Op: op, Want: want}
}
