package doctor

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// OneOfALane says that of the items of a lane at most one is worked on, and that one is when any waits.
const OneOfALane Invariant = "O1"

// doctorLanes goes over the lanes of a run: the head with the lane that it really stands in. Primary keys of both.
const doctorLanes = `
SELECT l.head, o.lane IS NOT DISTINCT FROM l.lane, l.due
FROM work_lane l LEFT JOIN work_order o ON o.run_id = l.run_id AND o.ordinal = l.head
WHERE l.run_id = $1`

// waitingWithout are items that wait in lanes which have no head, and wait for no end.
const waitingWithout = `
SELECT o.ordinal FROM work_block b
CROSS JOIN LATERAL generate_series(b.block * 8192, b.block * 8192 + b.size - 1) AS i (ordinal)
JOIN work_order o ON o.run_id = b.run_id AND o.ordinal = i.ordinal
LEFT JOIN work_lane l ON l.run_id = o.run_id AND l.lane = o.lane
WHERE b.run_id = $1 AND b.held IS NOT NULL AND get_bit(b.held, i.ordinal % 8192) = 1
  AND (l.lane IS NULL OR l.head IS NULL AND NOT l.due)
ORDER BY 1 LIMIT 1000`

// lanes checks the lanes of a run against what is under way: the items that are neither final nor held back are the
// heads of lanes, one of each.
func (d *doctor) lanes(ctx context.Context, r *doctorRun, active map[workqueue.Block]bitfield.Set) error {
	if !r.graph.Ordered || r.state == "cancelled" {
		return nil
	}
	rows := pg.Rows(ctx, d.tx, doctorLanes, r.id)
	heads := map[workqueue.Block]bitfield.Set{}
	var stray, idle int64
	var head *workqueue.Ordinal
	var own, due bool
	_, err := pgx.ForEachRow(rows, []any{&head, &own, &due}, func() error {
		if head == nil {
			return nil
		}
		block, bit := head.Block()
		at, known := active[block]
		if !own {
			stray++
		}
		if !known || !at.Has(bit) {
			idle++
		}
		mask := heads[block]
		mask.Add(bit)
		heads[block] = mask
		return nil
	})
	if err != nil {
		return err
	}
	if stray > 0 {
		d.found(OneOfALane, place{run: &r.id}, stray, "heads of lanes that stand in another lane")
	}
	if idle > 0 {
		d.found(OneOfALane, place{run: &r.id}, idle, "heads of lanes that are final, or held back themselves")
	}
	for block, mask := range active {
		d.bits(OneOfALane, place{run: &r.id, block: &block}, mask.AndNot(heads[block]),
			"worked on, and not the heads of their lanes")
	}
	lost, err := pg.Collect(ctx, d.tx, pgx.RowTo[workqueue.Ordinal], waitingWithout, r.id)
	if err == nil && len(lost) > 0 {
		d.found(OneOfALane, place{run: &r.id}, int64(len(lost)), "waiting in lanes in which nothing is worked on", lost...)
	}
	return err
}

// underWay are the items of a block that are neither final nor held back at any step.
func underWay(steps []stepBlock, settled bitfield.Set) bitfield.Set {
	active := bitfield.Full(steps[0].size).AndNot(settled)
	var begun bitfield.Set
	for i := range steps {
		active = active.AndNot(steps[i].Held)
		begun = begun.Or(steps[i].Ready).Or(steps[i].live)
	}
	return active.Or(begun)
}
