package inspect

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// ItemState says in one byte where an item is: at a step, or over all steps.
type ItemState = byte

// The states of items. The numbers are part of the API.
const (
	ItemWaiting   ItemState = iota // for an earlier step, or to be loaded
	ItemHeld                       // by a canary, or behind another item in its lane
	ItemReady                      // may be claimed
	ItemScheduled                  // waits to be retried
	ItemInFlight                   // requested and not answered
	ItemDone                       // has a result
	ItemFailed                     // has a final error
	ItemSkipped                    // a step that it needs has failed for it
	ItemStale                      // has a result whose inputs are being recomputed
)

// Layer is what the bytes of [Planes] mean.
type Layer string

// The layers.
const (
	LayerState    Layer = "state"    // an ItemState
	LayerAttempts Layer = "attempts" // requests since it was last ready, up to 255
	LayerLatency  Layer = "latency"  // duration of the request that brought its outcome, 0 for none: see [TimeCode]
	LayerAge      Layer = "age"      // time since it last moved: see [TimeCode]
)

// MaxPlaneBlocks bounds the blocks of one PlanesRequest.
const MaxPlaneBlocks = 128

// PlanesRequest selects items and a layer.
type PlanesRequest struct {
	Run    workqueue.RunID
	Step   string // empty: over all steps
	Layer  Layer  // empty: LayerState
	From   workqueue.Block
	Blocks int // at most MaxPlaneBlocks; blocks after the last item are left out
}

// Planes is one byte for each item, in order.
type Planes struct {
	Items  int64 // of the run
	Blocks int   // of the run
	Bytes  []byte
}

const planeItems = `SELECT items FROM batchrun WHERE id = $1`

// Planes returns a layer of some blocks, as of one moment.
func (s Store) Planes(ctx context.Context, req PlanesRequest) (*Planes, error) {
	var out *Planes
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) (err error) {
		out, err = s.planes(ctx, tx, &req)
		return err
	})
	return out, pg.Wrap(err, "check the items of run %s", req.Run)
}

func (s Store) planes(ctx context.Context, tx pgx.Tx, req *PlanesRequest) (*Planes, error) {
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, tx, req.Run)
	if err != nil {
		return nil, err
	}
	view, err := g.View(req.Step)
	if err != nil {
		return nil, err
	}
	out := &Planes{}
	if err := tx.QueryRow(ctx, planeItems, req.Run).Scan(&out.Items); err != nil {
		return nil, err
	}
	out.Blocks = int((out.Items + bitfield.Size - 1) / bitfield.Size)
	last := min(int64(req.From)+int64(min(req.Blocks, MaxPlaneBlocks)), int64(out.Blocks))
	if int64(req.From) >= last {
		return out, nil
	}
	first := int64(req.From) * bitfield.Size
	out.Bytes = make([]byte, min(last*bitfield.Size, out.Items)-first)
	blocks := make([]workqueue.Block, 0, last-int64(req.From))
	for b := req.From; int64(b) < last; b++ {
		blocks = append(blocks, b)
	}
	at := func(b workqueue.Block) []byte { return out.Bytes[int64(b)*bitfield.Size-first:] }
	if req.Layer != LayerState && req.Layer != "" {
		return out, readTrails(ctx, tx, req, g, view, blocks, at)
	}
	return out, eachColumn(ctx, tx, req.Run, g, view.Reads, blocks, func(c *planeColumn) error {
		c.states(view, at(c.block))
		return nil
	})
}

// RunMarks are numbers that change when something in a run does. They can only be compared.
type RunMarks struct {
	Items  int64
	Ended  bool        // it no longer changes automatically
	Run    int64       // of the run and its steps
	Blocks []BlockMark // in order, without blocks that do not exist so far
}

// BlockMark changes whenever the state of an item of the block changes at any step, and sometimes without a change.
type BlockMark struct {
	Block workqueue.Block
	Mark  int64
}

const (
	// marksOfRun is a point read and a range of run_step's primary key.
	marksOfRun = `
SELECT items, state IN ('completed', 'cancelled'), hashtextextended(r.xmin::text, 0) # coalesce((
    SELECT bit_xor(hashtextextended(s.xmin::text, s.step + 1)) FROM run_step s WHERE s.run_id = r.id), 0)
FROM batchrun r WHERE r.id = $1`

	// marksOfBlocks reads the run's work_block without the planes; slices by work_slice_live.
	marksOfBlocks = `
WITH live AS MATERIALIZED (
    SELECT step, block, ` + liveMark + ` AS mark FROM work_slice
    WHERE run_id = $1 AND state IN ('scheduled', 'claimed', 'sent') GROUP BY step, block
)
SELECT b.block, bit_xor(` + blockMark + ` # coalesce(l.mark, 0))
FROM work_block b LEFT JOIN live l USING (step, block)
WHERE b.run_id = $1 GROUP BY b.block ORDER BY b.block`
)

// Marks returns numbers that show what has changed, at a small part of the cost of reading it.
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

// BlockStates is where the items of one block are, at each requested step.
type BlockStates struct {
	BlockMark

	States [][]byte // an ItemState for each item
}

// States calls f with each block in order, at one moment. An empty name means all steps. f must not keep its argument.
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
	return pg.Wrap(err, "check %d blocks of run %s", len(blocks), run)
}

// ItemsOf returns the number of items of a run.
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
	err = s.db.Pool.QueryRow(ctx, planeItems, run).Scan(&items)
	return items, pg.Wrap(err, "count the items of run %s", run)
}

// planeColumn is the planes of one block at the steps of its run, as of one moment. Unread steps are empty.
type planeColumn struct {
	graph *plane.Graph
	block workqueue.Block
	size  int
	mark  int64
	steps []placeSets
}

// placeSets is where the items of a block are at one step. An item in none of the sets waits.
type placeSets struct {
	held, ready, scheduled, inFlight, done, failed, skipped bitfield.Set
}

const (
	// liveMark is a number that changes when a slice is made, ends or is postponed. Other moves change work_block.
	liveMark = `bit_xor(uuid_hash_extended(id, (state = 'scheduled')::int::bigint))`

	// blockMark is a number that changes with every update of the row of block b: the transaction that wrote it.
	blockMark = `hashtextextended(b.xmin::text, b.step)`

	// planesOfBlocks reads ranges of work_block's primary key. The partial index work_slice_live finds the few live
	// slices, instead of searching all ended ones of each block. It locks nothing.
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

// eachColumn calls f with each existing block in order. The column is valid only until f returns.
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
		&block, &step, &size, &mark, pgbits.OrEmpty(&p.held), pgbits.OrEmpty(&p.ready),
		pgbits.OrEmpty(&p.scheduled), pgbits.OrEmpty(&p.inFlight), pgbits.OrEmpty(&p.done), pgbits.OrEmpty(&p.failed),
		pgbits.OrEmpty(&p.skipped),
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

// statesOverAll chooses the most telling state of each item: failed, ended at all steps, in work at any step, stale
// because results are being recomputed, or else how far it has come.
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

// settled is, by step, the items with an outcome there and at all steps that it needs.
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

const (
	// generationAge is the age of the run's current generation in seconds.
	generationAge = `
SELECT coalesce(extract(epoch FROM tranche_now() - coalesce(started_at, sealed_at, created_at)), 0)::float8
FROM batchrun WHERE id = $1`

	// slicesOfBlocks is all slices that ever held an item of some blocks, in the order of creation.
	slicesOfBlocks = `
SELECT block, step, mask, attempt - (state = 'scheduled')::int,
    coalesce(extract(epoch FROM CASE WHEN state IN ('recorded', 'expired') THEN ended_at - ` + plane.AskedAt +
		` END), -1)
        ::float8,
    extract(epoch FROM tranche_now() - coalesce(ended_at, sent_at, created_at))::float8
FROM work_slice
WHERE run_id = $1 AND step = ANY ($2) AND block = ANY ($3)
ORDER BY block, step, created_at, id`
)

// TimeCode encodes a duration in one byte: 1+12·log2(1+n), rounded, up to 255, so that 12 more is twice as long. n
// is in milliseconds for latencies and in seconds for ages. 0 means none.
func TimeCode(n float64) byte {
	if math.IsNaN(n) || n <= 0 {
		return 1
	}
	return byte(min(1+math.Round(12*math.Log2(1+n)), math.MaxUint8))
}

type trail struct {
	size          int
	outcome, live bitfield.Set // items with an outcome, and items in live slices
	seen          bitfield.Set // items in any slice
	codes         [bitfield.Size]byte
	ages          [bitfield.Size]float64 // in seconds, of seen items
}

type trailPlace struct {
	block workqueue.Block
	step  workqueue.Step
}

// trailed is what its items read of a slice.
type trailed struct {
	trailPlace

	mask      bitfield.Set
	attempt   int     // requests so far
	took, age float64 // in seconds; took is negative if the slice has not ended or was never sent
}

type trailReader struct {
	layer  Layer
	since  float64 // seconds since the generation began
	at     func(workqueue.Block) []byte
	places map[trailPlace]*placeFacts
	now    trail
}

type placeFacts struct {
	size          int
	outcome, live bitfield.Set
}

// readTrails writes a byte for each item; over several steps, the most, the longest or the latest.
func readTrails(ctx context.Context, tx pgx.Tx, req *PlanesRequest, g *plane.Graph, view plane.View,
	blocks []workqueue.Block,
	at func(workqueue.Block) []byte,
) error {
	steps := view.Reads
	if view.Step != plane.OverAll {
		steps = []workqueue.Step{view.Step}
	}
	r := &trailReader{layer: req.Layer, at: at, places: map[trailPlace]*placeFacts{}}
	if err := tx.QueryRow(ctx, generationAge, req.Run).Scan(&r.since); err != nil {
		return err
	}
	err := eachColumn(ctx, tx, req.Run, g, steps, blocks, func(c *planeColumn) error {
		for _, s := range steps {
			p := &c.steps[s]
			r.places[trailPlace{c.block, s}] = &placeFacts{c.size, p.done.Or(p.failed), p.inFlight.Or(p.scheduled)}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := r.readSlices(ctx, tx, req.Run, steps, blocks); err != nil {
		return err
	}
	for p := range r.places { // those without a slice
		r.begin(p)
		r.finish(p)
	}
	return nil
}

func (r *trailReader) readSlices(ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step,
	blocks []workqueue.Block,
) error {
	var s trailed
	at, begun := trailPlace{}, false
	into := []any{&s.block, &s.step, pgbits.Into(&s.mask), &s.attempt, &s.took, &s.age}
	err := pg.Each(pg.Rows(ctx, tx, slicesOfBlocks, run, steps, blocks), into, func() {
		if !begun || s.trailPlace != at {
			if begun {
				r.finish(at)
			}
			at, begun = s.trailPlace, true
			r.begin(at)
		}
		r.now.take(&s, r.layer)
	})
	if begun && err == nil {
		r.finish(at)
	}
	return err
}

func (r *trailReader) begin(at trailPlace) {
	facts := r.places[at]
	t := &r.now
	t.size, t.outcome, t.live = facts.size, facts.outcome, facts.live
	t.seen = bitfield.Set{}
	clear(t.codes[:])
}

// take adds the next slice; newer ones override older ones.
func (t *trail) take(s *trailed, layer Layer) {
	switch layer {
	case LayerAge:
		for bit := range s.mask.All() {
			if !t.seen.Has(bit) || s.age < t.ages[bit] {
				t.ages[bit] = s.age
			}
		}
		t.seen = t.seen.Or(s.mask)
	case LayerLatency:
		code := byte(0)
		if s.took >= 0 {
			code = TimeCode(1000 * s.took)
		}
		fill(t.codes[:], s.mask.And(t.outcome), code)
	default:
		fill(t.codes[:], s.mask.And(t.outcome.Or(t.live)), byte(min(s.attempt, math.MaxUint8)))
	}
}

func (r *trailReader) finish(at trailPlace) {
	t, out := &r.now, r.at(at.block)
	delete(r.places, at)
	out = out[:min(t.size, len(out))]
	if r.layer == LayerAge {
		t.finishAges(r.since)
	}
	for i := range out {
		if r.layer == LayerAge && out[i] > 0 {
			out[i] = min(out[i], t.codes[i])
		} else {
			out[i] = max(out[i], t.codes[i])
		}
	}
}

// finishAges encodes the ages. One without outcome or slice last moved when the generation began.
func (t *trail) finishAges(since float64) {
	moved := t.outcome.Or(t.live)
	rest := TimeCode(since)
	for i := range t.size {
		switch {
		case !t.seen.Has(i):
			t.codes[i] = rest
		case moved.Has(i):
			t.codes[i] = TimeCode(t.ages[i])
		default:
			t.codes[i] = TimeCode(min(t.ages[i], since))
		}
	}
}
