package tracker

import (
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

// ackNewSQL is ackSQL of one batch, with the cleared bits as its last columns. They cost a kilobyte a group on the way
// to the client, so ackSQL does without.
const ackNewSQL = lockGroupsSQL + `, moved AS (
    UPDATE tracker_group g
    SET pending = l.pending & ~l.mask
    FROM locked l
    WHERE g.batch_id = l.batch_id AND g.grp = l.grp
      AND g.batch_id = ANY ($1::uuid[]) AND g.grp = ANY ($2::integer[])
      AND (l.pending & l.mask) <> B'0'::bit(8192)
      AND NOT EXISTS (SELECT FROM bad)
    RETURNING g.batch_id, g.grp, l.pending & l.mask AS cleared, g.pending = B'0'::bit(8192) AS emptied
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

// QueueAckNew is QueueAck that also tells which items were pending until now.
func QueueAckNew(b *pgx.Batch, id uuid.UUID, acks []Ack, into *AckedNew) error {
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
		*into = AckedNew{New: []Ack{}}
		return scanAcks(rows, func(_ uuid.UUID, acked Acked) error {
			into.Acked, into.New = acked, make([]Ack, len(groups))
			for i, group := range groups {
				set, err := pgbits.Set(bits[i])
				if err != nil {
					return err
				}
				into.New[i] = Ack{Group: int(group), Mask: set}
			}
			return nil
		}, &groups, &bits)
	})
	return nil
}
