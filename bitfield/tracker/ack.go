package tracker

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// Ack names items of one group.
type Ack struct {
	Group int
	Mask  bitfield.Set
}

// Acked is the effect of an ack.
type Acked struct {
	Newly     int  // items that were pending before
	Completed bool // this call, and no other, completed the batch
}

// lockGroupsSQL starts statements on the masks $1–$4 in ascending order: batches, groups, masks, and one past each
// mask's largest member. It locks the group rows in that order, which all statements share, so there is no deadlock.
// A row changed by a concurrent transaction is read as committed by it.
//
// Each row is looked up by its key, regardless of table statistics: the LIMIT drops nothing, but makes the planner
// expect one row instead of scanning all groups and masks. bad is the first mask that fits no group; computing it
// locks all groups.
const lockGroupsSQL = `
WITH want AS (
    SELECT * FROM unnest($1::uuid[], $2::integer[], $3::bit(8192)[], $4::integer[]) AS w(batch_id, grp, mask, above)
    LIMIT cardinality($2::integer[])
), locked AS MATERIALIZED (
    SELECT w.batch_id, w.grp, w.mask, w.above, g.size, g.pending
    FROM want w LEFT JOIN LATERAL (
        SELECT g.size, g.pending FROM tracker_group g
        WHERE g.batch_id = w.batch_id AND g.grp = w.grp
        FOR NO KEY UPDATE OF g) g ON true
), bad AS MATERIALIZED (
    SELECT batch_id, grp, above, size FROM locked
    WHERE size IS NULL OR above > size
    ORDER BY batch_id, grp LIMIT 1
)`

// ackMovedSQL clears bits in the locked groups. Callers continue its RETURNING list.
//
// = ANY in addition to each UPDATE's join makes the planner use the primary key: for an empty table it would scan the
// whole index, and keep that plan.
//
// All UPDATEs take new values from the locked rows, never from their target, including the values that a CHECK
// compares with (groups, which an add changes). PostgreSQL rereads the target only after evaluating the CHECKs, and
// would reject a mix of old and new values.
const ackMovedSQL = lockGroupsSQL + `, moved AS (
    UPDATE tracker_group g
    SET pending = l.pending & ~l.mask
    FROM locked l
    WHERE g.batch_id = l.batch_id AND g.grp = l.grp
      AND g.batch_id = ANY ($1::uuid[]) AND g.grp = ANY ($2::integer[])
      AND (l.pending & l.mask) <> B'0'::bit(8192)
      AND NOT EXISTS (SELECT FROM bad)
    RETURNING g.batch_id, g.pending = B'0'::bit(8192) AS emptied, `

// ackSQL locks a batch row only if one of its groups became empty, and computes from the row as locked, not as of the
// statement's start. So of two acks that empty the last two groups, or an ack and a seal, the second sees the first.
// A row reports a batch with newly acknowledged items, or bad.
const ackSQL = ackMovedSQL + `bit_count(l.pending & l.mask) AS newly
), total AS MATERIALIZED (
    SELECT batch_id, sum(newly)::bigint AS newly, count(*) FILTER (WHERE emptied)::integer AS emptied
    FROM moved GROUP BY batch_id
)` + closeSQL + `
SELECT t.batch_id, t.newly, l.generation, NULL::integer, NULL::integer, NULL::integer, NULL::integer
FROM total t LEFT JOIN batch l ON l.id = t.batch_id AND l.completed
UNION ALL
SELECT bad.batch_id, 0, NULL, bad.grp, bad.above, bad.size, b.groups
FROM bad LEFT JOIN tracker_batch b ON b.id = bad.batch_id`

// ackNewSQL is ackSQL for one batch, and returns the cleared bits: a kilobyte per group, so ackSQL omits them.
const ackNewSQL = ackMovedSQL + `g.grp, l.pending & l.mask AS cleared
), total AS MATERIALIZED (
    SELECT batch_id, sum(bit_count(cleared))::bigint AS newly, count(*) FILTER (WHERE emptied)::integer AS emptied,
           array_agg(grp ORDER BY grp) AS grps, array_agg(cleared ORDER BY grp) AS cleared
    FROM moved GROUP BY batch_id
)` + closeSQL + `
SELECT t.batch_id, t.newly, l.generation, NULL::integer, NULL::integer, NULL::integer, NULL::integer, t.grps, t.cleared
FROM total t LEFT JOIN batch l ON l.completed
UNION ALL
SELECT bad.batch_id, 0, NULL, bad.grp, bad.above, bad.size, b.groups, NULL, NULL
FROM bad LEFT JOIN tracker_batch b ON b.id = bad.batch_id`

// closeSQL continues from total, the emptied groups per batch. It locks batch rows in ascending order; see ackSQL.
const closeSQL = `, batch AS MATERIALIZED (
    SELECT b.*
    FROM (SELECT * FROM total WHERE emptied > 0 ORDER BY batch_id) t CROSS JOIN LATERAL (
        SELECT b.id, b.groups, b.open_groups - t.emptied AS open_groups, b.generation, b.state,
               b.state = 'sealed' AND b.open_groups = t.emptied AS completed
        FROM tracker_batch b
        WHERE b.id = t.batch_id
        FOR NO KEY UPDATE OF b) b
), closed AS (
    UPDATE tracker_batch b
    SET groups       = l.groups,
        open_groups  = l.open_groups,
        state        = CASE WHEN l.completed THEN 'completed' ELSE l.state END,
        completed_at = CASE WHEN l.completed THEN tranche_now() END,
        active_at    = tranche_now()
    FROM batch l
    WHERE b.id = l.id AND b.id = ANY ($1::uuid[])
)`

// byKeySQL makes later statements of the transaction find rows by key, even if they are planned, and the plan cached,
// while the tables are almost empty.
const byKeySQL = `
SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('enable_seqscan', 'off', true)`

// BatchAcks names items of a batch and receives the effect.
type BatchAcks struct {
	Batch uuid.UUID
	Items []Ack
	Into  *Acked
}

// QueueAcks acknowledges items of any groups and batches, each batch at most once, in a caller's pgx.Batch. It must
// run in a transaction, in which later statements also find rows by key. Items already acknowledged are unchanged, so
// duplicates write nothing. Several acks of a group count as their union. Into is set, and errors are returned, when
// the results are read.
//
// An unknown group, or a member beyond a group's size, is a *GroupError; then nothing is acknowledged. An unknown
// batch is ErrNotFound. A cancelled batch accepts acks but never completes.
func QueueAcks(b *pgx.Batch, acks []BatchAcks) error {
	into := map[uuid.UUID]*Acked{}
	m := &masks{}
	sorted := slices.Clone(acks)
	slices.SortFunc(sorted, func(a, b BatchAcks) int { return bytes.Compare(a.Batch[:], b.Batch[:]) })
	for _, a := range sorted {
		if into[a.Batch] != nil {
			return wrap("acknowledge", a.Batch, errTwice)
		}
		if err := m.add(a.Batch, a.Items); err != nil {
			return err
		}
		into[a.Batch], *a.Into = a.Into, Acked{} // batches without newly acknowledged items have no row
	}
	if len(m.sets) == 0 {
		return nil
	}
	b.Queue(byKeySQL)
	b.Queue(ackSQL, m.args()...).Query(func(rows pgx.Rows) error {
		return scanAcks(rows, func(batch uuid.UUID, acked Acked) error {
			*into[batch] = acked
			return nil
		})
	})
	return nil
}

// QueueAck is QueueAcks for one batch.
func QueueAck(b *pgx.Batch, id uuid.UUID, acks []Ack, into *Acked) error {
	return QueueAcks(b, []BatchAcks{{id, acks, into}})
}

// masks are acks as the statements take them: each group once, ascending.
type masks struct {
	batches []pgtype.UUID
	groups  []int32
	sets    []bitfield.Set
	above   []int32
}

func mergeMasks(id uuid.UUID, acks []Ack) (*masks, error) {
	m := &masks{}
	return m, m.add(id, acks)
}

// add adds the masks of a batch that sorts after all added before.
func (m *masks) add(id uuid.UUID, acks []Ack) error {
	first := len(m.sets)
	for _, a := range slices.SortedStableFunc(slices.Values(acks),
		func(a, b Ack) int { return cmp.Compare(a.Group, b.Group) }) {
		if a.Group < 0 || a.Group > math.MaxInt32 {
			return &GroupError{Batch: id, Group: a.Group}
		}
		group := int32(a.Group) // checked above
		if last := len(m.groups) - 1; last >= first && m.groups[last] == group {
			m.sets[last] = m.sets[last].Or(a.Mask)
			continue
		}
		m.batches = append(m.batches, pgtype.UUID{Bytes: id, Valid: true})
		m.groups, m.sets = append(m.groups, group), append(m.sets, a.Mask)
	}
	for i := first; i < len(m.sets); i++ {
		_, hi := m.sets[i].Bounds()
		m.above = append(m.above, int32(hi)) // at most bitfield.Size
	}
	return nil
}

func (m *masks) args() []any {
	return []any{m.batches, m.groups, pgbits.Slice(m.sets), m.above}
}

// misfit is a mask that fits no group.
type misfit struct {
	group, above, size, groups *int
}

func (f misfit) err(batch uuid.UUID) error {
	switch {
	case f.group == nil:
		return nil
	case f.groups == nil:
		return &NotFoundError{batch}
	}
	e := &GroupError{Batch: batch, Group: *f.group, Groups: *f.groups, Bit: *f.above - 1}
	if f.size != nil {
		e.Size = *f.size
	}
	return e
}

func scanAcks(rows pgx.Rows, tell func(uuid.UUID, Acked) error, more ...any) error {
	var (
		batch      uuid.UUID
		newly      int
		generation *int
		bad        misfit
	)
	columns := append([]any{&batch, &newly, &generation, &bad.group, &bad.above, &bad.size, &bad.groups}, more...)
	_, err := pgx.ForEachRow(rows, columns, func() error {
		if err := bad.err(batch); err != nil {
			return fmt.Errorf("tracker batch %s: %w", batch, err)
		}
		return tell(batch, Acked{Newly: newly, Completed: generation != nil})
	})
	if err != nil {
		return fmt.Errorf("acknowledge items: %w", err)
	}
	return nil
}

// queueAckNew is QueueAck that also returns the items newly acknowledged, by ascending group.
func queueAckNew(b *pgx.Batch, id uuid.UUID, acks []Ack, into *Acked, fresh *[]Ack) error {
	m, err := mergeMasks(id, acks)
	if err != nil || len(m.sets) == 0 {
		return err
	}
	b.Queue(byKeySQL)
	b.Queue(ackNewSQL, m.args()...).Query(func(rows pgx.Rows) error {
		var (
			groups []int32
			bits   []pgtype.Bits
		)
		return scanAcks(rows, func(_ uuid.UUID, acked Acked) error {
			*into = acked
			for i, group := range groups {
				set, err := pgbits.Set(bits[i])
				if err != nil {
					return err
				}
				*fresh = append(*fresh, Ack{Group: int(group), Mask: set})
			}
			return nil
		}, &groups, &bits)
	})
	return nil
}

// Span is the groups First to Last, inclusive.
type Span struct {
	First, Last int
}

// ackWholeSQL empties a batch's groups in the disjoint ascending spans $2 to $3; $4 and $5 are their bounds, which
// make the planner use the primary key. It locks the groups with pending items in ascending order and skips those
// emptied concurrently. With a code, $6, pending items are recorded as failed. No masks are transferred.
//
// The UPDATE does not join the locked rows, which without statistics could take quadratic time. It runs after the
// lock, on the same conditions and rows, and writes no value that it reads.
const ackWholeSQL = `
WITH span AS (
    SELECT * FROM unnest($2::integer[], $3::integer[]) AS s(first, last)
), locked AS MATERIALIZED (
    SELECT g.grp, bit_count(g.pending) AS newly, CASE WHEN $6::text <> '' THEN g.pending END AS failed
    FROM span s JOIN tracker_group g ON g.grp BETWEEN s.first AND s.last
    WHERE g.batch_id = ($1::uuid[])[1] AND g.grp BETWEEN $4 AND $5 AND g.pending <> B'0'::bit(8192)
    ORDER BY g.grp
    FOR NO KEY UPDATE OF g
), total AS MATERIALIZED (
    SELECT ($1::uuid[])[1] AS batch_id, coalesce(sum(newly), 0)::bigint AS newly, count(*)::integer AS emptied
    FROM locked
), failed AS (
    INSERT INTO tracker_failed AS f (batch_id, grp, code, mask)
    SELECT ($1::uuid[])[1], grp, $6, failed FROM locked WHERE failed IS NOT NULL
    ON CONFLICT (batch_id, grp, code) DO UPDATE SET mask = f.mask | excluded.mask
), moved AS (
    UPDATE tracker_group g
    SET pending = B'0'::bit(8192)
    FROM span s
    WHERE g.batch_id = ($1::uuid[])[1] AND g.grp BETWEEN $4 AND $5 AND g.grp BETWEEN s.first AND s.last
      AND g.pending <> B'0'::bit(8192) AND (SELECT emptied FROM total) > 0
)` + closeSQL + `
SELECT t.newly, l.generation, b.groups
FROM total t
JOIN tracker_batch b ON b.id = ($1::uuid[])[1]
LEFT JOIN batch l ON l.completed`

// queueAckWhole acknowledges all pending items of whole groups, like QueueAck but without masks: a billion items need
// one small message. A span beyond the batch's groups is a *GroupError when the results are read; then roll the
// transaction back.
func queueAckWhole(b *pgx.Batch, id uuid.UUID, spans []Span, code string, into *Acked) error {
	m, err := mergeSpans(id, spans)
	if err != nil {
		return err
	}
	b.Queue(ackWholeSQL, []pgtype.UUID{{Bytes: id, Valid: true}}, m.first, m.last, m.lo(), m.hi(), code).
		QueryRow(func(row pgx.Row) error {
			var (
				generation *int
				groups     int
			)
			err := row.Scan(&into.Newly, &generation, &groups)
			switch {
			case err != nil:
				return notFound("acknowledge groups of", id, err)
			case int(m.hi()) >= groups:
				return wrap("acknowledge groups of", id, &GroupError{Batch: id, Group: int(m.hi()), Groups: groups})
			}
			into.Completed = into.Completed || generation != nil
			return nil
		})
	return nil
}

// spans are disjoint ascending ranges of groups, as the statements take them.
type spans struct{ first, last []int32 }

func (s *spans) lo() int32 { return s.first[0] }
func (s *spans) hi() int32 { return s.last[len(s.last)-1] }

// mergeSpans sorts one or more spans and joins adjacent ones. Reversed spans and invalid groups are an error.
func mergeSpans(id uuid.UUID, list []Span) (*spans, error) {
	m := &spans{}
	sorted := slices.SortedFunc(slices.Values(list), func(a, b Span) int { return cmp.Compare(a.First, b.First) })
	for _, s := range sorted {
		if s.First < 0 || s.Last > math.MaxInt32 || s.First > s.Last {
			return nil, fmt.Errorf("groups %d to %d: %w", s.First, s.Last,
				&GroupError{Batch: id, Group: map[bool]int{true: s.First, false: s.Last}[s.First < 0]})
		}
		if n := len(m.last); n > 0 && s.First <= int(m.last[n-1])+1 {
			m.last[n-1] = max(m.last[n-1], int32(s.Last)) // checked above
			continue
		}
		m.first, m.last = append(m.first, int32(s.First)), append(m.last, int32(s.Last)) // checked above
	}
	return m, nil
}
