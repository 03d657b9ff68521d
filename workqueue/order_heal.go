package workqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// healedLanes bounds the lines that one transaction puts right.
const healedLanes = 1000

const (
	// runAtRest looks for a run in which items wait in line and nothing moves that they could wait for: nothing is ready,
	// nothing is in a slice, and nothing waits for its end in a line that was stopped. work_block_ready, work_slice_live
	// and work_lane_due tell of most runs that they are not it.
	runAtRest = `
SELECT r.id FROM batchrun r JOIN run_order o ON o.run_id = r.id
WHERE r.state = 'running'
  AND NOT EXISTS (SELECT FROM work_block b WHERE b.run_id = r.id AND b.has_ready)
  AND NOT EXISTS (SELECT FROM work_slice s WHERE s.run_id = r.id AND s.state IN ('scheduled', 'claimed', 'sent'))
  AND NOT EXISTS (SELECT FROM work_lane l WHERE l.run_id = r.id AND l.due)
  AND EXISTS (SELECT FROM work_block b WHERE b.run_id = r.id AND b.held IS NOT NULL)
ORDER BY r.id LIMIT 1`

	// waitingInLanes is one item of each line in which some wait.
	waitingInLanes = `
SELECT min(o.ordinal) FROM work_order o JOIN work_block b ON b.run_id = o.run_id AND b.block = o.ordinal / 8192
WHERE o.run_id = $1 AND get_bit(b.held, o.ordinal % 8192) = 1
GROUP BY o.lane LIMIT $2`

	// pendingOf are those of some items that the tracker waits for.
	pendingOf = `
SELECT u.ordinal FROM unnest($2::int[]) AS u (ordinal) JOIN tracker_group g
    ON g.batch_id = $1 AND g.grp = u.ordinal / 8192 AND get_bit(g.pending, u.ordinal % 8192) = 1`
)

// HealLines moves on lines that nobody has moved on: their heads are final, or they have none, and items wait in them
// all the same. Recording a head and making the next item ready are one transaction, so it should find none; what would
// be lost otherwise, though, is a run that never ends. It returns how many lines it moved on. Leader work.
func (s *Store) HealLines(ctx context.Context, lease Lease) (int, error) {
	for total := 0; ; {
		n := 0
		err := s.AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
			n, err = s.healLines(ctx, tx)
			return err
		})
		total += n
		if err != nil {
			return total, fmt.Errorf("move on lines that stand: %w", err)
		}
		if n == 0 {
			return total, nil
		}
	}
}

func (s *Store) healLines(ctx context.Context, tx pgx.Tx) (int, error) {
	var run RunID
	err := tx.QueryRow(ctx, runAtRest).Scan(&run)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for runs whose lines stand: %w", err)
	}
	g, err := s.graphs.of(ctx, tx, run)
	if err != nil {
		return 0, err
	}
	rows, err := tx.Query(ctx, waitingInLanes, run, healedLanes)
	if err != nil {
		return 0, fmt.Errorf("look for lines that stand: %w", err)
	}
	items, err := pgx.CollectRows(rows, pgx.RowTo[Ordinal])
	if err != nil {
		return 0, fmt.Errorf("look for lines that stand: %w", err)
	}
	lanes, err := readLanes(ctx, tx, run, items)
	if err != nil {
		return 0, err
	}
	if lanes, err = headless(ctx, tx, run, lanes); err != nil {
		return 0, err
	}
	return len(lanes), followIn(ctx, tx, run, g, lanes)
}

// headless are the lines, under their locks, of which no item is worked on, and should be.
func headless(ctx context.Context, tx pgx.Tx, run RunID, lanes []*laneRow) ([]*laneRow, error) {
	var heads []Ordinal
	for _, l := range lanes {
		if l.head != nil {
			heads = append(heads, *l.head)
		}
	}
	rows, err := tx.Query(ctx, pendingOf, run, heads)
	if err != nil {
		return nil, fmt.Errorf("look whether heads of lines are final: %w", err)
	}
	pending, err := pgx.CollectRows(rows, pgx.RowTo[Ordinal])
	if err != nil {
		return nil, fmt.Errorf("look whether heads of lines are final: %w", err)
	}
	at := make(map[Ordinal]bool, len(pending))
	for _, p := range pending {
		at[p] = true
	}
	return slices.DeleteFunc(lanes, func(l *laneRow) bool { return l.stop != nil || l.head != nil && at[*l.head] }), nil
}

// followIn makes ready who is first in lines that have no head, wherever in the line that is.
func followIn(ctx context.Context, tx pgx.Tx, run RunID, g *graph, lanes []*laneRow) error {
	if len(lanes) == 0 {
		return nil
	}
	if err := findNext(ctx, tx, run, g, lanes, func(*laneRow) Ordinal { return 0 }); err != nil {
		return err
	}
	var moved laneMoves
	for _, l := range lanes {
		moved.follow(l)
	}
	return moved.send(ctx, tx, run)
}

// send locks the blocks of those who are next, and writes.
func (m *laneMoves) send(ctx context.Context, tx pgx.Tx, run RunID) error {
	batch := &pgx.Batch{}
	var rows []blockID
	for _, id := range lockOrder(m.released) {
		rows = append(rows, blockID{run, id.step, id.block})
	}
	batch.Queue(lockBlocks, columns(rows)...)
	m.queue(batch, run)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("move on lines of run %s: %w", run, err)
	}
	return nil
}
