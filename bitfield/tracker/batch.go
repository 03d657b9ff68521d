// Package tracker knows, for any fan-out, which of its items are still missing, and says exactly once that none is.
//
// A batch is opened, gets groups of up to 8192 items (one bit an item, set while the item is pending), and is sealed
// when no more groups will come. Acks clear bits, by mask, in any order and as often as anyone likes. The batch is
// completed by whichever comes last, the seal or the ack of the last item, and only that one call reports it.
//
//	open ──Seal──▶ sealed ──last ack──▶ completed
//	  └──Seal of a batch with nothing pending──▶ completed ──Rearm──▶ sealed, next generation
//	open, sealed ──Cancel──▶ cancelled
//
// A run has such a batch. A tracker is one that an application opened (OpenTracker, AddItems, AckItems, SealTracker,
// DeleteTracker): a batch with a row in tracker_service. It has idempotent opens and adds, items that failed with a
// code, one event at its end, and an end for what everybody forgot:
//
//	open ──SealTracker──▶ sealed ──last ack──▶ completed ──after Keep──▶ deleted
//	  └─idle for OpenIdle──▶ expired ◀──idle for SealedIdle─┘ ──after Keep──▶ deleted
//
// # Guarantees
//
// A tracker is completed by exactly one call, a SealTracker or an AckItems, and only that call reports it; the event is
// inserted into the outbox run_event in its transaction, once. An item counts as failed, or as done, by the first ack
// of it that is committed; every later one changes nothing. Adding with a key that was used before adds nothing and
// returns the same groups. The batch of a run, and a tracker that does not exist, are a *NotFoundError for all that is
// about trackers.
//
// Every function works inside the caller's transaction, so an ack commits together with the result that it
// acknowledges, or not at all. One about batches that returns an error of this package has changed nothing; after an
// error of one about trackers the transaction must be rolled back.
//
// # Locks
//
// A transaction locks group rows first, in ascending order of group, and the batch row after them. Seal, AddGroups and
// Cancel lock only the batch row; an ack takes it only when a group became empty, so acks of one batch share no hot
// row; Rearm takes both. A caller that acks several batches in one transaction goes by ascending batch id, and one
// that adds groups or seals does so after its acks. Rows of tracker_service come last, again by ascending id; a row of
// tracker_failed is written by who holds its group, and so waits for no one. An ack writes the row of tracker_service
// once a second at most, and skips it when someone holds it. The transaction must be READ COMMITTED (PostgreSQL's
// default) or be retried on serialization failures.
//
// That Seal and the ack that empties a group both write the batch row is what makes completion exact: the second of two
// such transactions waits for the first, and then decides by what the first one left.
//
// # Not its job
//
// It does not know what the items are, does not retry, publishes nothing, calls no webhook and starts no goroutines.
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

// The states of a batch.
const (
	StateOpen      State = "open"      // groups may be added
	StateSealed    State = "sealed"    // no more groups, some items are pending
	StateCompleted State = "completed" // no more groups, no item is pending
	StateCancelled State = "cancelled" // acks are still taken, but it never completes
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// openSQL takes no lock that anyone waits for, unless the same id is opened twice at once: then the second waits for
// the first and finds the row.
const openSQL = `INSERT INTO tracker_batch (id, owner, state) VALUES ($1, $2, 'open') ON CONFLICT (id) DO NOTHING`

// Open makes an empty batch. Owner is free text that says whose it is. An id that is taken is ErrExists.
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

// sealSQL locks the batch row and decides by the row as it is then: an ack that empties a group writes the same row,
// so either that ack's decrement is seen here, or this state is seen there. It locks no group rows.
const sealSQL = `
UPDATE tracker_batch b
SET state        = CASE WHEN b.open_groups = 0 THEN 'completed' ELSE 'sealed' END,
    sealed_at    = tranche_now(),
    completed_at = CASE WHEN b.open_groups = 0 THEN tranche_now() END,
    active_at    = tranche_now()
WHERE b.id = $1 AND b.state = 'open'
RETURNING b.state = 'completed'`

// Seal says that no more groups will come. It reports true when this call completed the batch, which it does when no
// item is pending, so also for a batch without groups. Sealing again changes nothing and reports false; a cancelled
// batch is a *StateError.
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

// Cancel ends a batch that is not completed: it takes no more groups and will never complete. Cancelling again changes
// nothing; a completed batch is a *StateError.
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

// Reopen takes the cancel of a batch back: what is pending in it stays so, in the next generation, and it is sealed,
// whatever it was. A batch that is not cancelled, or that waits for no one, is a *StateError.
func Reopen(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	tag, err := tx.Exec(ctx, reopenSQL, id)
	if err != nil || tag.RowsAffected() > 0 {
		return wrap("reopen", id, err)
	}
	return checkState(ctx, tx, "reopen", id, "cancelled, with items that are pending")
}

// addGroupsSQL locks the batch row before it adds rows, so that two adds number their groups one at a time and
// none slips in behind a seal. The new rows are no one else's to wait for. A full mask of n bits is the complement of n
// zeros shifted in from the left.
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

// AddGroups appends groups of the given sizes, each 1 to bitfield.Size items and all of them pending, and returns the
// number of the first; the others follow it. The batch must be open, or it is a *StateError.
//
// Calling it again adds groups again: a caller that may run twice does it in the transaction that also marks its own
// work as done.
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

// openSealedSQL makes batches with all their groups. No one else knows of them, so there is nothing to wait for.
const openSealedSQL = `
WITH batch AS (
    INSERT INTO tracker_batch (id, owner, state, groups, open_groups, items, sealed_at)
    SELECT b.id, b.owner, 'sealed', b.groups, b.groups, b.items, tranche_now()
    FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::bigint[]) AS b (id, owner, groups, items)
)
INSERT INTO tracker_group (batch_id, grp, size, pending)
SELECT g.batch, g.grp, g.size, ~(~B'0'::bit(8192) >> g.size)
FROM unnest($5::uuid[], $6::integer[], $7::integer[]) AS g (batch, grp, size)`

// QueueSealed is [Open], [AddGroups] and [Seal] in one statement of a caller's pgx.Batch, for a batch of which all is
// known from the start. An id that is taken is an error of PostgreSQL's. The statement's parameters are arrays: those
// of several batches, one behind the other, make all of these.
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

// rearmSQL locks the group rows and then, when all of them are held, the batch row; batch is that row under
// the lock. A cancelled batch and a mask that fits no group leave everything as it was. As in ackSQL, new values come
// from the locked rows only.
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

// Rearm makes items pending again and starts the next generation, which it returns: a completed batch is sealed again
// and will complete, and report it, again. A sealed batch stays sealed, an open one open. Items that are pending
// already are left alone.
//
// A cancelled batch is a *StateError, a mask that fits no group a *GroupError, an unknown batch ErrNotFound. Masks
// without any member are ErrNothing: the batch would wait for no one.
func Rearm(ctx context.Context, tx pgx.Tx, id uuid.UUID, items []Ack) (generation int, err error) {
	const op = "rearm"
	m, err := mergeMasks(id, items)
	if err != nil {
		return 0, err
	}
	if m.empty() {
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

func (m *masks) empty() bool {
	for i := range m.sets {
		if !m.sets[i].Empty() {
			return false
		}
	}
	return true
}

const stateSQL = `SELECT state FROM tracker_batch WHERE id = $1`

// checkState explains why a conditional update met no row: nil when the batch is in one of the harmless states, in
// which the operation has nothing to do.
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
