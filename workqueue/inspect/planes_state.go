package inspect

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// planeColumn is the planes of one block at the steps of its run, as of one moment. Steps that were not read are empty.
type planeColumn struct {
	graph *plane.Graph
	block workqueue.Block
	size  int
	mark  int64
	steps []placeSets
}

// placeSets is where the items of a block are at one step. An item that is in none of the sets waits.
type placeSets struct {
	held, ready, scheduled, inFlight, done, failed, skipped bitfield.Set
}

// orEmpty scans a plane that may be NULL, which is an empty one.
type orEmpty struct{ set *bitfield.Set }

// ScanBits implements pgtype.BitsScanner.
func (o orEmpty) ScanBits(b pgtype.Bits) (err error) {
	if !b.Valid {
		*o.set = bitfield.Set{}
		return nil
	}
	*o.set, err = pgbits.Set(b)
	return err
}

const (
	// liveMark is, over slices, a number that changes whenever one comes, goes or is put off. What else changes where
	// an item is, changes a row of work_block too.
	liveMark = `bit_xor(uuid_hash_extended(id, (state = 'scheduled')::int::bigint))`

	// blockMark is, of a block b, a number that changes with every update of its row: the transaction that wrote it.
	blockMark = `hashtextextended(b.xmin::text, b.step)`

	// planesOfBlocks reads ranges of work_block's primary key. Live slices are few: they are found by the partial index
	// work_slice_live, and not block by block among all that have ended. Nothing is locked.
	planesOfBlocks = `
WITH live AS MATERIALIZED (
    SELECT step, block, ` + liveMark + ` AS mark,
        bit_or(remaining) FILTER (WHERE state <> 'scheduled') AS in_flight,
        bit_or(remaining) FILTER (WHERE state = 'scheduled') AS scheduled
    FROM work_slice
    WHERE run_id = $1 AND step = ANY ($2) AND state IN ('scheduled', 'claimed', 'sent') AND block = ANY ($3)
    GROUP BY step, block
)
SELECT b.block, b.step, b.size, ` + blockMark + ` # coalesce(l.mark, 0), b.held, b.ready, l.scheduled, l.in_flight,
    b.done, b.failed, b.skipped
FROM work_block b LEFT JOIN live l USING (step, block)
WHERE b.run_id = $1 AND b.step = ANY ($2) AND b.block = ANY ($3)
ORDER BY b.block, b.step`
)

// eachColumn calls f with each of some blocks that is there, in their order. The column is only good until f returns.
func eachColumn(ctx context.Context, db tracker.Querier, run workqueue.RunID, g *plane.Graph, steps []workqueue.Step,
	blocks []workqueue.Block,
	f func(*planeColumn) error,
) error {
	rows := pg.Rows(ctx, db, planesOfBlocks, run, steps, blocks)
	column := planeColumn{graph: g, block: -1, steps: make([]placeSets, len(g.Steps))}
	var block workqueue.Block
	var step workqueue.Step
	var size int
	var mark int64
	var p placeSets
	into := []any{
		&block, &step, &size, &mark, orEmpty{&p.held}, orEmpty{&p.ready}, orEmpty{&p.scheduled}, orEmpty{&p.inFlight},
		orEmpty{&p.done}, orEmpty{&p.failed}, orEmpty{&p.skipped},
	}
	_, err := pgx.ForEachRow(rows, into, func() error {
		if block != column.block {
			if column.block >= 0 {
				if err := f(&column); err != nil {
					return err
				}
			}
			clear(column.steps)
			column.block, column.size, column.mark = block, 0, 0
		}
		column.size = max(column.size, size)
		column.mark ^= mark
		column.steps[step] = p
		return nil
	})
	if err != nil || column.block < 0 {
		return err
	}
	return f(&column)
}

// states writes a byte for each item of the block.
func (c *planeColumn) states(view plane.View, out []byte) {
	out = out[:min(c.size, len(out))]
	clear(out)
	settled := c.settled(view.Reads)
	if view.Step != plane.OverAll {
		p := &c.steps[view.Step]
		fill(out, p.held, ItemHeld)
		fill(out, p.ready, ItemReady)
		fill(out, p.scheduled, ItemScheduled)
		fill(out, p.inFlight, ItemInFlight)
		fill(out, p.done, ItemStale)
		fill(out, p.done.And(settled[view.Step]), ItemDone)
		fill(out, p.failed, ItemFailed)
		fill(out, p.skipped, ItemSkipped)
		return
	}
	c.statesOverAll(settled, out)
}

// statesOverAll tells of each item what says most about it: that it has failed, that it has come to its end everywhere,
// that it is being worked on anywhere, that its results stand while they are made again, or how far it has come else.
func (c *planeColumn) statesOverAll(settled []bitfield.Set, out []byte) {
	var all placeSets
	ended, results := bitfield.Full(c.size), bitfield.Full(c.size)
	for i := range c.steps {
		p := &c.steps[i]
		all.held = all.held.Or(p.held)
		all.ready = all.ready.Or(p.ready)
		all.scheduled = all.scheduled.Or(p.scheduled)
		all.inFlight = all.inFlight.Or(p.inFlight)
		if !c.graph.Steps[i].Optional {
			all.failed = all.failed.Or(p.failed)
		}
		ended = ended.And(settled[i])
		if len(c.graph.After[i]) == 0 {
			results = results.And(p.done)
		}
	}
	fill(out, all.held, ItemHeld)
	fill(out, all.ready, ItemReady)
	fill(out, results, ItemStale)
	fill(out, all.scheduled, ItemScheduled)
	fill(out, all.inFlight, ItemInFlight)
	fill(out, ended, ItemDone)
	fill(out, all.failed, ItemFailed)
}

// settled is, by step, the items that have come to an end there and at all that it needs.
func (c *planeColumn) settled(steps []workqueue.Step) []bitfield.Set {
	settled := make([]bitfield.Set, len(c.steps))
	for _, s := range steps { // in order: each after those that it needs
		p := &c.steps[s]
		settled[s] = p.done.Or(p.failed).Or(p.skipped)
		for _, n := range c.graph.Steps[s].Needs {
			settled[s] = settled[s].And(settled[n])
		}
	}
	return settled
}

func fill(out []byte, set bitfield.Set, with byte) {
	for lo, hi := range set.Ranges() {
		if lo >= len(out) {
			return
		}
		run := out[lo:min(hi, len(out))]
		for i := range run {
			run[i] = with
		}
	}
}
