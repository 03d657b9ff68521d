package inspect

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// RunMarks are numbers that change when something of a run does. They are only good for being compared.
type RunMarks struct {
	Items  int64
	Ended  bool        // it moves no more by itself
	Run    int64       // of the run itself and of its steps
	Blocks []BlockMark // in order; blocks that are not there yet are left out
}

// BlockMark changes whenever the state of an item of the block has changed at any step, and sometimes else.
type BlockMark struct {
	Block workqueue.Block
	Mark  int64
}

const (
	// marksOfRun is a point read, and a range of run_step's primary key.
	marksOfRun = `
SELECT items, state IN ('completed', 'cancelled'), hashtextextended(r.xmin::text, 0) # coalesce((
    SELECT bit_xor(hashtextextended(s.xmin::text, s.step + 1)) FROM run_step s WHERE s.run_id = r.id), 0)
FROM batchrun r WHERE r.id = $1`

	// marksOfBlocks touches every row of work_block of the run, but none of the planes in them, and the live slices by
	// work_slice_live.
	marksOfBlocks = `
WITH live AS MATERIALIZED (
    SELECT step, block, ` + liveMark + ` AS mark FROM work_slice
    WHERE run_id = $1 AND state IN ('scheduled', 'claimed', 'sent') GROUP BY step, block
)
SELECT b.block, bit_xor(` + blockMark + ` # coalesce(l.mark, 0))
FROM work_block b LEFT JOIN live l USING (step, block)
WHERE b.run_id = $1 GROUP BY b.block ORDER BY b.block`
)

// Marks tells what has changed since somebody last asked, at a small part of the price of looking at it.
func (s Store) Marks(ctx context.Context, run workqueue.RunID) (marks RunMarks, err error) {
	batch := &pgx.Batch{}
	batch.Queue(marksOfRun, run).QueryRow(func(row pgx.Row) error {
		return row.Scan(&marks.Items, &marks.Ended, &marks.Run)
	})
	batch.Queue(marksOfBlocks, run).Query(func(rows pgx.Rows) error {
		marks.Blocks, err = pgx.CollectRows(rows, pgx.RowToStructByPos[BlockMark])
		return err
	})
	if err := s.db.Pool.SendBatch(ctx, batch).Close(); err != nil {
		if errors.Is(err, pgx.ErrNoRows) {
			err = workqueue.ErrNotFound
		}
		return RunMarks{}, fmt.Errorf("see what has changed of run %s: %w", run, err)
	}
	return marks, nil
}

// BlockStates is where the items of one block are, step by step as they were asked for.
type BlockStates struct {
	BlockMark

	States [][]byte // an ItemState for each item
}

// States calls f with each of some blocks that is there, in their order, as they all are at one moment. An empty name
// stands for all steps together. What f gets is only good until it returns.
func (s Store) States(ctx context.Context, run workqueue.RunID, steps []string, blocks []workqueue.Block,
	f func(BlockStates) error,
) error {
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, s.db.Pool, run)
	if err != nil {
		return err
	}
	all, err := g.View("")
	if err != nil {
		return err
	}
	views := make([]plane.View, len(steps))
	out := BlockStates{States: make([][]byte, len(steps))}
	room := make([][]byte, len(steps))
	for i, name := range steps {
		if views[i], err = g.View(name); err != nil {
			return fmt.Errorf("run %s: %w", run, err)
		}
		room[i] = make([]byte, bitfield.Size)
	}
	err = eachColumn(ctx, s.db.Pool, run, g, all.Reads, blocks, func(c *planeColumn) error {
		out.BlockMark = BlockMark{c.block, c.mark}
		for i := range views {
			out.States[i] = room[i][:c.size]
			c.states(views[i], out.States[i])
		}
		return f(out)
	})
	if err != nil {
		return fmt.Errorf("look at %d blocks of run %s: %w", len(blocks), run, err)
	}
	return nil
}

// ItemsOf returns how many items a run has. The error wraps ErrNotFound when there is no such run, or it has not all of
// some steps.
func (s Store) ItemsOf(ctx context.Context, run workqueue.RunID, steps []string) (items int64, err error) {
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, s.db.Pool, run)
	if err != nil {
		return 0, err
	}
	for _, name := range steps {
		if _, err := g.View(name); err != nil {
			return 0, fmt.Errorf("run %s: %w", run, err)
		}
	}
	if err := s.db.Pool.QueryRow(ctx, planeItems, run).Scan(&items); err != nil {
		return 0, fmt.Errorf("count the items of run %s: %w", run, err)
	}
	return items, nil
}
