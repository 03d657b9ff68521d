package redo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// healedLanes bounds the lanes that one transaction puts right.
const healedLanes = 1000

const (
	// runAtRest looks, behind a run, for one in which items wait in lane and nothing moves that they could wait for:
	// nothing is ready, nothing is in a slice, and nothing waits for its end in a lane that was stopped.
	// work_block_ready, work_slice_live and work_lane_due tell of most runs that they are not it, each looked up by
	// itself: no plan compares all runs with all slices.
	runAtRest = `
SELECT r.id FROM batchrun r JOIN run_order o ON o.run_id = r.id
WHERE r.id > $1 AND r.state = 'running'
  AND (SELECT true FROM work_block b WHERE b.run_id = r.id AND b.has_ready LIMIT 1) IS NULL
  AND (SELECT true FROM work_slice s WHERE s.run_id = r.id AND s.state IN ('scheduled', 'claimed', 'sent')
       LIMIT 1) IS NULL
  AND (SELECT true FROM work_lane l WHERE l.run_id = r.id AND l.due LIMIT 1) IS NULL
  AND (SELECT true FROM work_block b WHERE b.run_id = r.id AND b.held IS NOT NULL LIMIT 1)
ORDER BY r.id LIMIT 1`

	// waitingInLanes is one item of each lane in which some wait, from behind a lane on.
	waitingInLanes = `
SELECT o.lane, min(o.ordinal)
FROM work_order o JOIN work_block b ON b.run_id = o.run_id AND b.block = o.ordinal / 8192
WHERE o.run_id = $1 AND o.lane > $2 AND get_bit(b.held, o.ordinal % 8192) = 1
GROUP BY o.lane ORDER BY o.lane LIMIT $3`

	// pendingOf are those of some items that the tracker waits for.
	pendingOf = `
SELECT u.ordinal FROM unnest($2::int[]) AS u (ordinal) JOIN tracker_group g
    ON g.batch_id = $1 AND g.grp = u.ordinal / 8192 AND get_bit(g.pending, u.ordinal % 8192) = 1`
)

// HealLines moves on lanes that nobody has moved on: their heads are final, or they have none, and items wait in them
// all the same. Recording a head and making the next item ready are one transaction, so it should find none; what would
// be lost otherwise, though, is a run that never ends. It returns how many lanes it moved on. A run at rest for other
// reasons, or whose lanes cannot be moved on, keeps no other from it. Leader work.
func (s Store) HealLines(ctx context.Context, lease workqueue.Lease) (int, error) {
	var at lanePlace
	return settle.New(s.db).OverRuns(ctx, "move on lanes that stand", func(after workqueue.RunID) (p settle.Progress,
		err error) {
		var next lanePlace
		err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
			next = at // the transaction may be run again
			p, err = s.healLines(ctx, tx, after, &next)
			return err
		})
		at = next
		return p, err
	})
}

// lanePlace is how far the lanes of a run have been looked at.
type lanePlace struct {
	run  workqueue.RunID
	lane int64
}

// healLines looks at the next few lanes of a run. There is more to look at as long as it moved none on: a run in which
// something moves again is not at rest.
func (s Store) healLines(
	ctx context.Context, tx pgx.Tx, after workqueue.RunID, at *lanePlace,
) (p settle.Progress, err error) {
	err = tx.QueryRow(ctx, runAtRest, after).Scan(&p.Run)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("look for runs whose lanes stand: %w", err)
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
		return p, fmt.Errorf("look for lanes that stand: %w", err)
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

// waiting returns an item of each of the next lanes in which some wait, and goes behind them.
func (at *lanePlace) waiting(ctx context.Context, tx pgx.Tx) ([]workqueue.Ordinal, error) {
	rows := pg.Rows(ctx, tx, waitingInLanes, at.run, at.lane, healedLanes)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (item workqueue.Ordinal, err error) {
		err = row.Scan(&at.lane, &item)
		return item, err
	})
}

// headless are the lanes, under their locks, of which no item is worked on, and should be.
func headless(ctx context.Context, tx pgx.Tx, run workqueue.RunID, lanes []*settle.LaneRow) ([]*settle.LaneRow, error) {
	var heads []workqueue.Ordinal
	for _, l := range lanes {
		if l.Head != nil {
			heads = append(heads, *l.Head)
		}
	}
	pending, err := pg.Collect(ctx, tx, pgx.RowTo[workqueue.Ordinal], pendingOf, run, heads)
	if err != nil {
		return nil, fmt.Errorf("look whether heads of lanes are final: %w", err)
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

// followIn makes ready who is first in lanes that have no head, wherever in the lane that is.
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
