package service

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
)

// GroupState is how a group stands. Size = Pending + Done + Failed.
type GroupState struct {
	Group, Size, Pending, Done, Failed int
}

// groupStatesSQL takes no locks; both tables are read by their primary keys.
const groupStatesSQL = `
SELECT g.grp, g.size, bit_count(g.pending)::integer,
    coalesce((SELECT sum(bit_count(f.mask)) FROM tracker_failed f WHERE f.batch_id = $1 AND f.grp = g.grp), 0)::integer
FROM tracker_group g
WHERE g.batch_id = $1 AND g.grp >= $2
ORDER BY g.grp LIMIT $3`

// GroupStates returns groups from the given one on, in ascending order. A page that is not full is the last one.
func GroupStates(ctx context.Context, q tracker.Querier, batch uuid.UUID, from, limit int) ([]GroupState, error) {
	if err := known(ctx, q, batch); err != nil {
		return nil, err
	}
	rows, err := q.Query(ctx, groupStatesSQL, batch, clamp(from), page(limit))
	if err != nil {
		return nil, wrap("list the groups of", batch, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g GroupState, err error) {
		err = row.Scan(&g.Group, &g.Size, &g.Pending, &g.Failed)
		g.Done = g.Size - g.Pending - g.Failed
		return g, err
	})
	return list, wrap("list the groups of", batch, err)
}

// Position is a place in a batch: an item's group and index.
type Position struct {
	Group, Index int
}

// missingSQL takes no locks. It goes along the primary key, and past groups that have nothing pending.
const missingSQL = `
SELECT grp, pending FROM tracker_group
WHERE batch_id = $1 AND grp >= $2 AND pending <> B'0'::bit(8192)
ORDER BY grp LIMIT $3`

// missingPage bounds the groups that are read at a time: a megabyte.
const missingPage = 1024

// Missing returns what is pending, from a position on, as at most limit runs in ascending order; next is where to go
// on, or nil at the end. Between pages the batch goes on changing.
func Missing(ctx context.Context, q tracker.Querier, batch uuid.UUID, from Position, limit int,
) (missing []tracker.Range, next *Position, err error) {
	if err := known(ctx, q, batch); err != nil {
		return nil, nil, err
	}
	limit = page(limit)
	for {
		groups := min(missingPage, limit-len(missing)+1)
		rows, err := q.Query(ctx, missingSQL, batch, clamp(from.Group), groups)
		if err != nil {
			return nil, nil, wrap("list what is missing of", batch, err)
		}
		read := 0
		var group int
		var pending bitfield.Set
		_, err = pgx.ForEachRow(rows, []any{&group, pgbits.Into(&pending)}, func() error {
			read++
			for lo, hi := range pending.Ranges() {
				if group == from.Group && hi <= from.Index || next != nil {
					continue
				}
				if group == from.Group {
					lo = max(lo, from.Index)
				}
				if len(missing) == limit {
					next = &Position{group, lo}
					continue
				}
				missing = append(missing, tracker.Range{Group: group, Lo: lo, Hi: hi})
			}
			return nil
		})
		if err != nil || next != nil || read < groups {
			return missing, next, wrap("list what is missing of", batch, err)
		}
		from = Position{Group: group + 1}
	}
}

func known(ctx context.Context, q tracker.Querier, batch uuid.UUID) error {
	var stale bool
	return notFound("read", batch, q.QueryRow(ctx, checkSQL, batch).Scan(&stale))
}

// clamp keeps a group's number within what the column holds: past the end there is nothing anyway.
func clamp(group int) int32 { return int32(min(max(group, 0), bitfield.MaxGroup)) }
