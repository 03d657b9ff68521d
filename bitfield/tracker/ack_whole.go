package tracker

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Span is whole groups, First to Last, both among them.
type Span struct {
	First, Last int
}

// ackWholeSQL empties the groups of a batch in the spans $2 to $3, which lie apart and ascend; $4 and $5 are their
// bounds, which let the primary key find the rows whatever the planner thinks. It locks the groups that have pending
// items, in ascending order; one that another transaction emptied meanwhile is left out. No mask goes over the wire.
//
// The UPDATE is not joined with what is locked, which for want of statistics could be done in the square of the time.
// It runs after the lock, by the same conditions on the same rows, and writes no value that it reads.
const ackWholeSQL = `
WITH span AS (
    SELECT * FROM unnest($2::integer[], $3::integer[]) AS s(first, last)
), locked AS MATERIALIZED (
    SELECT g.grp, bit_count(g.pending) AS newly
    FROM span s JOIN tracker_group g ON g.grp BETWEEN s.first AND s.last
    WHERE g.batch_id = ($1::uuid[])[1] AND g.grp BETWEEN $4 AND $5 AND g.pending <> B'0'::bit(8192)
    ORDER BY g.grp
    FOR NO KEY UPDATE OF g
), total AS MATERIALIZED (
    SELECT ($1::uuid[])[1] AS batch_id, coalesce(sum(newly), 0)::bigint AS newly, count(*)::integer AS emptied
    FROM locked
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

// QueueAckWhole acknowledges everything that is pending in whole groups, like QueueAck, but without masks: a billion
// items need one small message. A span that goes past the groups of the batch is a *GroupError when the results are
// read, and then the transaction must be rolled back.
func QueueAckWhole(b *pgx.Batch, id uuid.UUID, spans []Span, into *Acked) error {
	return queueWhole(b, ackWholeSQL, id, spans, into)
}

func queueWhole(b *pgx.Batch, sql string, id uuid.UUID, spans []Span, into *Acked) error {
	if len(spans) == 0 {
		return nil
	}
	first, last, err := MergeSpans(id, spans)
	if err != nil {
		return err
	}
	lo, hi := first[0], last[len(last)-1]
	b.Queue(sql, []pgtype.UUID{{Bytes: id, Valid: true}}, first, last, lo, hi).QueryRow(func(row pgx.Row) error {
		var (
			generation *int
			groups     int
		)
		err := row.Scan(&into.Newly, &generation, &groups)
		switch {
		case err != nil:
			return wrap("acknowledge groups of", id, noRows(err))
		case int(hi) >= groups:
			return wrap("acknowledge groups of", id, &GroupError{Batch: id, Group: int(hi), Groups: groups})
		case generation != nil:
			into.Completed, into.Generation = true, *generation
		}
		return nil
	})
	return nil
}

// MergeSpans sorts spans and joins those that meet, as the statements take them. One that ends before it begins, or
// lies outside what groups can have, is an error.
func MergeSpans(id uuid.UUID, spans []Span) (first, last []int32, err error) {
	sorted := slices.SortedFunc(slices.Values(spans), func(a, b Span) int { return cmp.Compare(a.First, b.First) })
	for _, s := range sorted {
		if s.First < 0 || s.Last > math.MaxInt32 || s.First > s.Last {
			return nil, nil, fmt.Errorf("groups %d to %d: %w", s.First, s.Last,
				&GroupError{Batch: id, Group: map[bool]int{true: s.First, false: s.Last}[s.First < 0]})
		}
		if n := len(last); n > 0 && s.First <= int(last[n-1])+1 {
			last[n-1] = max(last[n-1], int32(s.Last)) // checked above
			continue
		}
		first, last = append(first, int32(s.First)), append(last, int32(s.Last)) // checked above
	}
	return first, last, nil
}
