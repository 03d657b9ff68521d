package tracker

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// AckedNew is what an ack did, and to which items.
type AckedNew struct {
	Acked
	New []Ack // the items that were pending until now, by ascending group; groups without any are left out
}

// ackNewSQL is ackSQL, with the cleared bits as its last columns. They cost a kilobyte a group on their way to the
// client, so ackSQL does without.
const ackNewSQL = lockGroupsSQL + `, moved AS (
    UPDATE tracker_group g
    SET pending = l.pending & ~l.mask
    FROM locked l
    WHERE g.batch_id = $1 AND g.grp = ANY ($2::integer[]) AND g.grp = l.grp
      AND (l.pending & l.mask) <> B'0'::bit(8192)
      AND NOT EXISTS (SELECT FROM bad)
    RETURNING g.grp, l.pending & l.mask AS cleared, g.pending = B'0'::bit(8192) AS emptied
), total AS MATERIALIZED (
    SELECT coalesce(sum(bit_count(cleared)), 0)::bigint AS newly, count(*) FILTER (WHERE emptied)::integer AS emptied,
           array_agg(grp ORDER BY grp) AS grps, array_agg(cleared ORDER BY grp) AS cleared
    FROM moved
)` + closeSQL + `
SELECT t.newly, l.generation, bad.grp, bad.above, bad.size, b.groups, t.grps, t.cleared
FROM total t
LEFT JOIN batch l ON l.completed
LEFT JOIN bad ON true
LEFT JOIN tracker_batch b ON bad.grp IS NOT NULL AND b.id = $1`

// QueueAckNew is QueueAck that also tells which items were pending until now.
func QueueAckNew(b *pgx.Batch, id uuid.UUID, acks []Ack, into *AckedNew) error {
	if len(acks) == 0 {
		return nil
	}
	m, err := mergeMasks(id, acks)
	if err != nil {
		return err
	}
	b.Queue(ackNewSQL, m.args()...).QueryRow(func(row pgx.Row) error {
		*into, err = m.scanAckNew(row)
		return err
	})
	return nil
}

func (m *masks) scanAckNew(row pgx.Row) (AckedNew, error) {
	var (
		acked  AckedNew
		groups []int32
		bits   []pgtype.Bits
		err    error
	)
	acked.Acked, err = m.scanAck(scanMore{row, []any{&groups, &bits}})
	if err != nil {
		return AckedNew{}, err
	}
	acked.New = make([]Ack, len(groups))
	for i, group := range groups {
		set, err := pgbits.Set(bits[i])
		if err != nil {
			return AckedNew{}, fmt.Errorf("acknowledge items of tracker batch %s: %w", m.batch, err)
		}
		acked.New[i] = Ack{Group: int(group), Mask: set}
	}
	return acked, nil
}

// scanMore is a row that has further columns after those that its reader knows.
type scanMore struct {
	pgx.Row
	more []any
}

func (r scanMore) Scan(dest ...any) error { return r.Row.Scan(append(dest, r.more...)...) }
