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
// Every function works inside the caller's transaction, so an ack commits together with the result that it
// acknowledges, or not at all. A function that returns one of this package's errors has changed nothing.
//
// # Locks
//
// A transaction locks group rows first, in ascending order of group, and the batch row after them. Seal, AddGroups and
// Cancel lock only the batch row; an ack takes it only when a group became empty, so acks of one batch share no hot
// row; Rearm takes both. A caller that acks several batches in one transaction goes by ascending batch id, and one
// that adds groups or seals does so after its acks. The transaction must be READ COMMITTED (PostgreSQL's default) or be
// retried on serialization failures.
//
// That Seal and the ack that empties a group both write the batch row is what makes completion exact: the second of two
// such transactions waits for the first, and then decides by what the first one left.
//
// # Not its job
//
// It does not know what the items are, does not retry, publishes nothing and starts no goroutines. Functions are safe
// for concurrent use as far as their transactions are.
package tracker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

// Batch is a batch as it stands.
type Batch struct {
	ID          uuid.UUID
	Owner       string
	State       State
	Generation  int   // 1 when opened, one more with every Rearm
	Groups      int   // how many groups it has; they are numbered from 0
	OpenGroups  int   // how many of them have pending items
	Items       int64 // the sum of the groups' sizes
	CreatedAt   time.Time
	ActiveAt    time.Time // the last change other than an ack that left its group with pending items
	SealedAt    *time.Time
	CompletedAt *time.Time
}

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

// getSQL takes no locks.
const getSQL = `
SELECT id, owner, state, generation, groups, open_groups, items, created_at, active_at, sealed_at, completed_at
FROM tracker_batch WHERE id = $1`

// Get reads a batch. One that does not exist is ErrNotFound.
func Get(ctx context.Context, q Querier, id uuid.UUID) (Batch, error) {
	var b Batch
	err := q.QueryRow(ctx, getSQL, id).Scan(&b.ID, &b.Owner, &b.State, &b.Generation, &b.Groups, &b.OpenGroups, &b.Items,
		&b.CreatedAt, &b.ActiveAt, &b.SealedAt, &b.CompletedAt)
	return b, wrap("read", id, noRows(err))
}

func noRows(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// checkState explains why a conditional update met no row: nil when the batch is in one of the harmless states, in
// which the operation has nothing to do.
func checkState(ctx context.Context, q Querier, op string, id uuid.UUID, want string, harmless ...State) error {
	b, err := Get(ctx, q, id)
	if errors.Is(err, ErrNotFound) {
		return wrap(op, id, ErrNotFound)
	}
	if err != nil {
		return err
	}
	if slices.Contains(harmless, b.State) {
		return nil
	}
	return &StateError{Batch: id, State: b.State, Op: op, Want: want}
}

func wrap(op string, id uuid.UUID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s tracker batch %s: %w", op, id, err)
}

var (
	// ErrNotFound is wrapped by every error about a batch that does not exist.
	ErrNotFound = errors.New("no such tracker batch")
	// ErrExists is wrapped when a batch is opened under an id that is taken.
	ErrExists = errors.New("the tracker batch exists already")
	// ErrNothing is wrapped when AddGroups gets no sizes, or Rearm no members: the call would have no effect that
	// anyone could later wait for.
	ErrNothing = errors.New("nothing was given")

	errTwice = errors.New("it was named twice; put its items together")
)

// StateError is returned when an operation does not fit the state that a batch is in.
type StateError struct {
	Batch uuid.UUID
	State State  // the state it is in
	Op    string // what was asked
	Want  string // the states in which it can be done
}

func (e *StateError) Error() string {
	return fmt.Sprintf("%s: tracker batch %s is %s; it must be %s", e.Op, e.Batch, e.State, e.Want)
}

// SizeError is returned by AddGroups for a group of no items or of more than bitfield.Size.
type SizeError struct {
	Batch uuid.UUID
	At    int // the place in the list of sizes, from 0
	Size  int
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("add groups to tracker batch %s: size %d of the list is %d; a group holds 1 to %d items",
		e.Batch, e.At, e.Size, bitfield.Size)
}

// GroupError is returned for a mask that fits no group of its batch: there is no such group, or it is too small.
type GroupError struct {
	Batch  uuid.UUID
	Group  int
	Groups int // how many groups the batch has; 0 when that was not looked up
	Size   int // the size of the group; 0 when there is no such group
	Bit    int // the largest member of the mask
}

func (e *GroupError) Error() string {
	switch {
	case e.Size == 0 && e.Groups == 0:
		return fmt.Sprintf("tracker batch %s has no group %d", e.Batch, e.Group)
	case e.Size == 0:
		return fmt.Sprintf("tracker batch %s has no group %d: it has groups 0 to %d", e.Batch, e.Group, e.Groups-1)
	}
	return fmt.Sprintf("group %d of tracker batch %s has no item %d: it has items 0 to %d",
		e.Group, e.Batch, e.Bit, e.Size-1)
}
