package tracker

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// Ack names items of one group.
type Ack struct {
	Group int
	Mask  bitfield.Set
}

// Acked is what an ack did.
type Acked struct {
	Newly      int  // how many items were pending until now
	Completed  bool // this ack, and no other call, completed the batch
	Generation int  // the generation that it completed; 0 unless Completed
}

// lockGroupsSQL begins a statement about the masks $2–$4 of batch $1: groups, masks, and for each mask one past its
// largest member. It locks the group rows in ascending order, the same for everyone, so that two statements about the
// same groups wait for each other and never in a circle; a row that another transaction changed meanwhile is read as
// that one left it. bad is the first mask that fits no group.
//
// = ANY stands beside each join so that the primary key finds the rows even when the planner has no statistics yet; by
// batch_id alone it would read every group of the batch.
const lockGroupsSQL = `
WITH want AS (
    SELECT * FROM unnest($2::integer[], $3::bit(8192)[], $4::integer[]) AS w(grp, mask, above)
), locked AS MATERIALIZED (
    SELECT w.grp, w.mask, w.above, g.size, g.pending
    FROM want w JOIN tracker_group g ON g.grp = w.grp
    WHERE g.batch_id = $1 AND g.grp = ANY ($2::integer[])
    ORDER BY w.grp
    FOR NO KEY UPDATE OF g
), bad AS MATERIALIZED (
    SELECT w.grp, w.above, l.size
    FROM want w LEFT JOIN locked l USING (grp)
    WHERE l.grp IS NULL OR l.above > l.size
    ORDER BY w.grp LIMIT 1
)`

// ackSQL clears bits in the locked groups, and locks the batch row only when a group became empty. What it writes there
// it computes from the row as it is under that lock, not as it was when the statement began: of two acks that empty the
// last two groups, and of an ack and a seal, the second one sees what the first one did.
//
// Every UPDATE takes its new values from the locked rows, never from its own target. PostgreSQL would bring the target
// up to date before it writes, but it checks the CHECKs before that, and would refuse a mix of old and new values.
const ackSQL = lockGroupsSQL + `, moved AS (
    UPDATE tracker_group g
    SET pending = l.pending & ~l.mask
    FROM locked l
    WHERE g.batch_id = $1 AND g.grp = ANY ($2::integer[]) AND g.grp = l.grp
      AND (l.pending & l.mask) <> B'0'::bit(8192)
      AND NOT EXISTS (SELECT FROM bad)
    RETURNING bit_count(l.pending & l.mask) AS newly, g.pending = B'0'::bit(8192) AS emptied
), total AS MATERIALIZED (
    SELECT coalesce(sum(newly), 0)::bigint AS newly, count(*) FILTER (WHERE emptied)::integer AS emptied FROM moved
)` + closeSQL + `
SELECT t.newly, l.generation, bad.grp, bad.above, bad.size, b.groups
FROM total t
LEFT JOIN batch l ON l.completed
LEFT JOIN bad ON true
LEFT JOIN tracker_batch b ON bad.grp IS NOT NULL AND b.id = $1`

// closeSQL goes on from total, which says how many groups the statement emptied: it is the part of an ack that locks
// the batch row, as described at ackSQL.
const closeSQL = `, batch AS MATERIALIZED (
    SELECT b.open_groups - t.emptied AS open_groups, b.generation, b.state,
           b.state = 'sealed' AND b.open_groups = t.emptied AS completed
    FROM tracker_batch b, total t
    WHERE b.id = $1 AND t.emptied > 0
    FOR NO KEY UPDATE OF b
), closed AS (
    UPDATE tracker_batch b
    SET open_groups  = l.open_groups,
        state        = CASE WHEN l.completed THEN 'completed' ELSE l.state END,
        completed_at = CASE WHEN l.completed THEN clock_timestamp() END,
        active_at    = clock_timestamp()
    FROM batch l
    WHERE b.id = $1
)`

// AckMasks acknowledges items, for any number of groups, in one round trip. Items that were acknowledged before are
// left alone, so a duplicate does no harm and writes nothing. Several acks of one group count as their union.
//
// A group that the batch does not have, and a member past a group's size, are a *GroupError, and then nothing was
// acknowledged; an unknown batch is ErrNotFound. In a cancelled batch items can be acknowledged, but never complete it.
func AckMasks(ctx context.Context, tx pgx.Tx, id uuid.UUID, acks []Ack) (Acked, error) {
	if len(acks) == 0 {
		return Acked{}, nil
	}
	m, err := mergeMasks(id, acks)
	if err != nil {
		return Acked{}, err
	}
	return m.scanAck(tx.QueryRow(ctx, ackSQL, m.args()...))
}

// QueueAck is AckMasks as part of a caller's pgx.Batch, which saves its round trip. The pgx.Batch must run in a
// transaction. Acked is filled, and errors are returned, when its results are read.
func QueueAck(b *pgx.Batch, id uuid.UUID, acks []Ack, into *Acked) error {
	if len(acks) == 0 {
		return nil
	}
	m, err := mergeMasks(id, acks)
	if err != nil {
		return err
	}
	b.Queue(ackSQL, m.args()...).QueryRow(func(row pgx.Row) error {
		*into, err = m.scanAck(row)
		return err
	})
	return nil
}

// masks are acks as the statements take them: each group once, in ascending order.
type masks struct {
	batch  uuid.UUID
	groups []int32
	sets   []bitfield.Set
	above  []int32
}

func mergeMasks(id uuid.UUID, acks []Ack) (*masks, error) {
	order := make([]int, len(acks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(acks[a].Group, acks[b].Group) })
	m := &masks{batch: id, groups: make([]int32, 0, len(acks)), sets: make([]bitfield.Set, 0, len(acks))}
	for _, i := range order {
		a := &acks[i]
		if a.Group < 0 || a.Group > math.MaxInt32 {
			return nil, &GroupError{Batch: id, Group: a.Group}
		}
		group := int32(a.Group) // checked above
		if last := len(m.groups) - 1; last >= 0 && m.groups[last] == group {
			m.sets[last] = m.sets[last].Or(a.Mask)
			continue
		}
		m.groups = append(m.groups, group)
		m.sets = append(m.sets, a.Mask)
	}
	m.above = make([]int32, len(m.sets))
	for i := range m.sets {
		_, hi := m.sets[i].Bounds()
		m.above[i] = int32(hi) // at most bitfield.Size
	}
	return m, nil
}

func (m *masks) args() []any {
	return []any{m.batch, m.groups, pgbits.Slice(m.sets), m.above}
}

// misfit is a mask that fits no group, as the statements report it.
type misfit struct {
	group, above, size, groups *int
}

func (f misfit) err(batch uuid.UUID) error {
	switch {
	case f.group == nil:
		return nil
	case f.groups == nil:
		return ErrNotFound
	}
	e := &GroupError{Batch: batch, Group: *f.group, Groups: *f.groups, Bit: *f.above - 1}
	if f.size != nil {
		e.Size = *f.size
	}
	return e
}

func (m *masks) scanAck(row pgx.Row) (Acked, error) {
	var (
		acked      Acked
		generation *int
		bad        misfit
	)
	err := row.Scan(&acked.Newly, &generation, &bad.group, &bad.above, &bad.size, &bad.groups)
	if err == nil {
		err = bad.err(m.batch)
	}
	if err != nil {
		return Acked{}, fmt.Errorf("acknowledge items of tracker batch %s: %w", m.batch, err)
	}
	if generation != nil {
		acked.Completed, acked.Generation = true, *generation
	}
	return acked, nil
}
