package redo

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// lockLanes locks the lanes of all wanted items, between slices and blocks, and returns the blocks of their heads.
func (r *redo) lockLanes(ctx context.Context) ([]workqueue.Block, error) {
	if !r.graph.Ordered {
		return nil, nil
	}
	items := map[workqueue.Ordinal]bool{}
	for _, masks := range r.wanted {
		for block, mask := range masks {
			for bit := range mask.All() {
				items[block.Ordinal(bit)] = true
			}
		}
	}
	var err error
	if r.lanes, err = settle.ReadLanes(ctx, r.tx, r.run, plane.Sorted(items)); err != nil {
		return nil, err
	}
	var more []workqueue.Block
	for _, l := range r.lanes {
		for _, item := range []*workqueue.Ordinal{l.Low, l.Head} {
			if item == nil {
				continue
			}
			if block, _ := item.Block(); !slices.Contains(more, block) {
				more = append(more, block)
			}
		}
	}
	return more, nil
}

// waitInLane holds everything that a column would make ready: the first of a lane is chosen later.
func (c *blockPlan) waitInLane() {
	for s := range c.moves {
		m := &c.moves[s]
		m.held, m.ready = m.held.Or(m.ready), bitfield.Set{}
	}
}

// stillAt is the given items that are ready or in progress at some step. By primary key and work_slice_block.
const stillAt = `
SELECT u.ordinal FROM unnest($2::int[]) AS u (ordinal)
WHERE EXISTS (SELECT FROM work_block b WHERE b.run_id = $1 AND b.step = ANY ($3::smallint[])
        AND b.block = u.ordinal / 8192 AND get_bit(b.ready, u.ordinal % 8192) = 1)
    OR EXISTS (SELECT FROM work_slice s WHERE s.run_id = $1 AND s.step = ANY ($3::smallint[])
        AND s.block = u.ordinal / 8192 AND s.state IN ('scheduled', 'claimed', 'sent')
        AND get_bit(s.remaining, u.ordinal % 8192) = 1)`

const (
	// notBegun returns the items in no slice and final at no step, and the first steps at which they are ready.
	notBegun = `
SELECT u.ordinal, at.steps FROM unnest($2::int[]) AS u (ordinal) CROSS JOIN LATERAL (
    SELECT array_agg(b.step) FILTER (WHERE get_bit(b.ready, u.ordinal % 8192) = 1) AS steps,
        bit_or(get_bit(b.done | b.failed | coalesce(b.skipped, ` + plane.NoBits + `), u.ordinal % 8192)) AS final
    FROM work_block b WHERE b.run_id = $1 AND b.step = ANY ($3::smallint[]) AND b.block = u.ordinal / 8192) at
WHERE at.steps IS NOT NULL AND at.final = 0 AND NOT EXISTS (
    SELECT FROM work_slice s WHERE s.run_id = $1 AND s.step = ANY ($3::smallint[])
        AND s.block = u.ordinal / 8192 AND s.state IN ('scheduled', 'claimed', 'sent')
        AND get_bit(s.remaining, u.ordinal % 8192) = 1)`

	// putBack holds ready items again. The blocks and steps are locked, so nothing claims them.
	putBack = `
UPDATE work_block b SET ready = b.ready & ~u.bits, held = coalesce(b.held, ` + plane.NoBits + `) | u.bits
FROM unnest($2::smallint[], $3::int[], $4::bit(8192)[]) AS u (step, block, bits)
WHERE b.run_id = $1 AND b.step = u.step AND b.block = u.block AND (b.ready & u.bits) = u.bits`
)

// demoteHeads holds again the lanes' heads that are not begun and have reset items before them.
func (r *redo) demoteHeads(ctx context.Context, lanes []*redoneLane) error {
	byHead := map[workqueue.Ordinal]*redoneLane{}
	var heads []workqueue.Ordinal
	for _, l := range lanes {
		if h := l.LaneRow.Head; h != nil && !l.head && l.first < *h {
			byHead[*h] = l
			heads = append(heads, *h)
		}
	}
	if len(heads) == 0 {
		return nil
	}
	var idle settle.LaneMoves
	var item settle.Follower
	err := pg.Each(pg.Rows(ctx, r.tx, notBegun, r.run, heads, r.graph.Numbers()),
		[]any{&item.Item, &item.Steps}, func() {
			idle.Release(&item)
			byHead[item.Item].LaneRow.Head = nil
		})
	if err != nil {
		return fmt.Errorf("find heads of lanes to demote: %w", err)
	}
	if len(idle.Released) == 0 {
		return nil
	}
	steps, blocks, bits := idle.Bits()
	err = pg.CheckRows(len(blocks))(r.tx.Exec(ctx, putBack, r.run, steps, blocks, pgbits.Slice(bits)))
	return pg.Wrap(err, "have heads of lanes give way")
}

type redoneLane struct {
	*settle.LaneRow
	first workqueue.Ordinal // of the reset items
	head  bool              // the head was reset
}

// lineUp updates the lanes of reset items: a lane with an item in work keeps it as its head, and the items before it
// are next; in any other lane the first item becomes ready.
func (r *redo) lineUp(ctx context.Context) error {
	if len(r.lanes) == 0 || len(r.moved) == 0 {
		return nil
	}
	lanes, err := r.redone(ctx)
	if err != nil {
		return err
	}
	if err := r.demoteHeads(ctx, lanes); err != nil {
		return err
	}
	var moved settle.LaneMoves
	var free []*settle.LaneRow
	from := map[int64]workqueue.Ordinal{}
	for _, l := range lanes {
		first := l.first
		if l.Low != nil {
			first = min(first, *l.Low)
		}
		switch {
		case l.LaneRow.Head == nil:
			free = append(free, l.LaneRow)
			from[l.Lane] = first
		case l.head: // in progress at other steps
			free = append(free, l.LaneRow)
			from[l.Lane] = *l.LaneRow.Head
			l.Low = &first
		case first < *l.LaneRow.Head:
			moved.Set(l.Lane, l.LaneRow.Head, &first, nil)
		}
	}
	err = settle.FindNext(ctx, r.tx, r.run, r.graph, free,
		func(l *settle.LaneRow) workqueue.Ordinal { return from[l.Lane] })
	if err != nil {
		return err
	}
	for _, l := range free {
		moved.Again(l)
	}
	return moved.Send(ctx, r.tx, r.run)
}

// redone collects the reset items by lane. A reset head that is nowhere in progress is no longer the head.
func (r *redo) redone(ctx context.Context) ([]*redoneLane, error) {
	taken := map[workqueue.Block]bitfield.Set{}
	for i := range r.moved {
		taken[workqueue.Block(r.moved[i].Group)] = r.moved[i].Mask
	}
	var lanes []*redoneLane
	var heads []workqueue.Ordinal
	for _, row := range r.lanes { // by lane, then item
		block, bit := row.Item.Block()
		if mask := taken[block]; !mask.Has(bit) {
			continue
		}
		if len(lanes) == 0 || lanes[len(lanes)-1].Lane != row.Lane {
			lanes = append(lanes, &redoneLane{LaneRow: row, first: row.Item})
		}
		if l := lanes[len(lanes)-1]; row.Head != nil && *row.Head == row.Item {
			l.head = true
			heads = append(heads, row.Item)
		}
	}
	busy, err := r.inProgress(ctx, heads)
	if err != nil {
		return nil, err
	}
	for _, l := range lanes {
		if l.head && !slices.Contains(busy, *l.LaneRow.Head) {
			l.LaneRow.Head, l.head = nil, false
		}
	}
	return lanes, nil
}

// inProgress is the given items that are still in progress at a step where they were not reset.
func (r *redo) inProgress(ctx context.Context, items []workqueue.Ordinal) ([]workqueue.Ordinal, error) {
	if r.graph.Single() || len(items) == 0 {
		return nil, nil
	}
	busy, err := pg.Collect(ctx, r.tx, pgx.RowTo[workqueue.Ordinal], stillAt, r.run, items, r.graph.Numbers())
	if err != nil {
		return nil, fmt.Errorf("find items in progress: %w", err)
	}
	slices.Sort(busy)
	return busy, nil
}

const healedLanes = 1000

const (
	// runAtRest finds the next run in which items wait in lanes and nothing moves: nothing is ready, in a slice, or
	// due in a stopped lane. work_block_ready, work_slice_live and work_lane_due rule most runs out, each by a
	// separate lookup, so no plan compares all runs with all slices.
	runAtRest = `
SELECT r.id FROM batchrun r JOIN run_order o ON o.run_id = r.id
WHERE r.id > $1 AND r.state = 'running'
  AND (SELECT true FROM work_block b WHERE b.run_id = r.id AND b.has_ready LIMIT 1) IS NULL
  AND (SELECT true FROM work_slice s WHERE s.run_id = r.id AND s.state IN ('scheduled', 'claimed', 'sent')
       LIMIT 1) IS NULL
  AND (SELECT true FROM work_lane l WHERE l.run_id = r.id AND l.due LIMIT 1) IS NULL
  AND (SELECT true FROM work_block b WHERE b.run_id = r.id AND b.held IS NOT NULL LIMIT 1)
ORDER BY r.id LIMIT 1`

	// waitingInLanes is one waiting item for each lane after a given one.
	waitingInLanes = `
SELECT o.lane, min(o.ordinal)
FROM work_order o JOIN work_block b ON b.run_id = o.run_id AND b.block = o.ordinal / 8192
WHERE o.run_id = $1 AND o.lane > $2 AND get_bit(b.held, o.ordinal % 8192) = 1
GROUP BY o.lane ORDER BY o.lane LIMIT $3`

	// pendingOf is the given items that the tracker waits for.
	pendingOf = `
SELECT u.ordinal FROM unnest($2::int[]) AS u (ordinal) JOIN tracker_group g
    ON g.batch_id = $1 AND g.grp = u.ordinal / 8192 AND get_bit(g.pending, u.ordinal % 8192) = 1`
)

// RepairLanes advances stalled lanes: their head is final or missing, and items wait. Recording a head and making the
// next item ready are one transaction, so there should be none; but a stalled lane would mean a run that never ends.
// It returns the number of lanes advanced. A failing run does not block others. Leader work.
func (s Store) RepairLanes(ctx context.Context, lease workqueue.Lease) (int, error) {
	var at lanePlace
	return settle.New(s.db).OverRuns(ctx, "advance stalled lanes", func(after workqueue.RunID) (p settle.Progress,
		err error) {
		var next lanePlace
		err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
			next = at // the transaction may be retried
			p, err = s.repairLanes(ctx, tx, after, &next)
			return err
		})
		at = next
		return p, err
	})
}

type lanePlace struct {
	run  workqueue.RunID
	lane int64
}

// repairLanes checks the next few lanes of a run. There are more to check while none was advanced.
func (s Store) repairLanes(
	ctx context.Context, tx pgx.Tx, after workqueue.RunID, at *lanePlace,
) (p settle.Progress, err error) {
	err = tx.QueryRow(ctx, runAtRest, after).Scan(&p.Run)
	if err != nil {
		return p, pg.Wrap(pg.NoRow(err, nil), "find runs with stalled lanes")
	}
	if at.run != p.Run {
		*at = lanePlace{p.Run, math.MinInt64}
	}
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, tx, p.Run)
	if err != nil {
		return p, err
	}
	items, err := at.waiting(ctx, tx)
	if err != nil {
		return p, fmt.Errorf("find stalled lanes: %w", err)
	}
	lanes, err := settle.ReadLanes(ctx, tx, p.Run, items)
	if err != nil {
		return p, err
	}
	if lanes, err = headless(ctx, tx, p.Run, lanes); err != nil {
		return p, err
	}
	p.Done, p.More = len(lanes), len(lanes) == 0 && len(items) == healedLanes
	return p, followIn(ctx, tx, p.Run, g, lanes)
}

// waiting returns an item of each of the next lanes with waiting items, and advances at.
func (at *lanePlace) waiting(ctx context.Context, tx pgx.Tx) ([]workqueue.Ordinal, error) {
	rows := pg.Rows(ctx, tx, waitingInLanes, at.run, at.lane, healedLanes)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (item workqueue.Ordinal, err error) {
		err = row.Scan(&at.lane, &item)
		return item, err
	})
}

// headless is the locked lanes without an item in work that should have one.
func headless(ctx context.Context, tx pgx.Tx, run workqueue.RunID, lanes []*settle.LaneRow) ([]*settle.LaneRow, error) {
	var heads []workqueue.Ordinal
	for _, l := range lanes {
		if l.Head != nil {
			heads = append(heads, *l.Head)
		}
	}
	pending, err := pg.Collect(ctx, tx, pgx.RowTo[workqueue.Ordinal], pendingOf, run, heads)
	if err != nil {
		return nil, fmt.Errorf("check whether heads of lanes are final: %w", err)
	}
	at := make(map[workqueue.Ordinal]bool, len(pending))
	for _, p := range pending {
		at[p] = true
	}
	return slices.DeleteFunc(lanes, func(l *settle.LaneRow) bool {
		return l.Stop != nil || l.Head != nil &&
			at[*l.Head]
	}), nil
}

// followIn makes the first item of each lane ready, for lanes without a head.
func followIn(ctx context.Context, tx pgx.Tx, run workqueue.RunID, g *plane.Graph, lanes []*settle.LaneRow) error {
	if len(lanes) == 0 {
		return nil
	}
	if err := settle.FindNext(ctx, tx, run, g, lanes, func(*settle.LaneRow) workqueue.Ordinal { return 0 }); err != nil {
		return err
	}
	var moved settle.LaneMoves
	for _, l := range lanes {
		moved.Follow(l)
	}
	return moved.Send(ctx, tx, run)
}
