package tracker

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

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
// number of the first; the others follow it. The batch must be open, or it is a *StateError. A size out of range is a
// *SizeError; no sizes are ErrNothing.
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
			return nil, &SizeError{Batch: id, At: i, Size: size}
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

// missingSQL takes no locks. Its left join tells a batch with nothing pending (one row of NULLs) from no batch (none).
const missingSQL = `
SELECT g.grp, g.pending
FROM tracker_batch b
LEFT JOIN tracker_group g ON g.batch_id = b.id AND g.pending <> B'0'::bit(8192)
WHERE b.id = $1
ORDER BY g.grp`

// Range is a run of pending items in one group, from index Lo up to but without Hi.
type Range struct {
	Group, Lo, Hi int
}

// Missing returns the items that no one has acknowledged, as runs in ascending order. It grows with the number of runs,
// at most 4096 a group when every other item is pending. An unknown batch is ErrNotFound.
func Missing(ctx context.Context, q Querier, id uuid.UUID) ([]Range, error) {
	rows, err := q.Query(ctx, missingSQL, id)
	if err != nil {
		return nil, wrap("list what is missing of", id, err)
	}
	var (
		missing []Range
		group   *int
		pending nullSet
		found   bool
	)
	_, err = pgx.ForEachRow(rows, []any{&group, &pending}, func() error {
		found = true
		for lo, hi := range pending.Ranges() {
			missing = append(missing, Range{Group: *group, Lo: lo, Hi: hi})
		}
		return nil
	})
	if err == nil && !found {
		err = ErrNotFound
	}
	return missing, wrap("list what is missing of", id, err)
}

var _ fmt.Stringer = Range{}

// String returns group:lo-last, or group:lo for a single item.
func (r Range) String() string {
	if r.Hi == r.Lo+1 {
		return fmt.Sprintf("%d:%d", r.Group, r.Lo)
	}
	return fmt.Sprintf("%d:%d-%d", r.Group, r.Lo, r.Hi-1)
}

// nullSet scans a bit(8192) that may be NULL, which is the empty set.
type nullSet struct{ bitfield.Set }

func (s *nullSet) ScanBits(b pgtype.Bits) (err error) {
	if !b.Valid {
		s.Set = bitfield.Set{}
		return nil
	}
	s.Set, err = pgbits.Set(b)
	return err
}

// rearmSQL locks the group rows and then, when all of them are held, the batch row; batch is that row as it is under
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
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	switch {
	case err != nil:
		return 0, wrap(op, id, err)
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
