package redo

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

type blockPlan struct {
	block  workqueue.Block
	size   int
	bytes  []int64        // by step, of the payloads
	at     []plane.Planes // by step, as locked
	there  []bool         // by step: the block has a row
	live   []bitfield.Set // by step, in locked slices
	slices []*liveSlice
	moves  []stepMoves
	wanted []bitfield.Set // by step
	never  []bitfield.Set // by step: invalid, never redone
}

type stepMoves struct {
	reset   bitfield.Set // of a named step: discarded and redone
	up      bitfield.Set // discarded at an earlier step
	again   bitfield.Set // of up: redone in any case
	kept    bitfield.Set // of up: kept until a part changes
	out     bitfield.Set // of up: still skipped
	stopped bitfield.Set // removed from slices
	gone    bitfield.Set // removed from planes
	final   bitfield.Set // of those, from done and failed
	ready   bitfield.Set // of reset, ready now
	held    bitfield.Set // of that, held by a canary
}

const redoPlanes = `
SELECT step, block, size, payload_bytes, ready, coalesce(held, B'0'::bit(8192)), done, failed,
       coalesce(skipped, B'0'::bit(8192)), coalesce(invalid, B'0'::bit(8192))
FROM work_block WHERE run_id = $1 AND step = ANY($2) AND block = ANY($3) ORDER BY block, step`

func (r *redo) readColumns(ctx context.Context, blocks []workqueue.Block, f func(*blockPlan) error) error {
	rows := pg.Rows(ctx, r.tx, redoPlanes, r.run, r.family, blocks)
	var step workqueue.Step
	var block workqueue.Block
	var size int
	var bytes int64
	var p plane.Planes
	var invalid bitfield.Set
	var all []*blockPlan
	to := []any{&step, &block, &size, &bytes, pgbits.Into(&p.Ready), pgbits.Into(&p.Held), pgbits.Into(&p.Done),
		pgbits.Into(&p.Failed), pgbits.Into(&p.Skipped), pgbits.Into(&invalid)}
	err := pg.Each(rows, to, func() {
		if len(all) == 0 || all[len(all)-1].block != block {
			all = append(all, r.newBlockPlan(block, size))
		}
		c := all[len(all)-1]
		c.at[step], c.bytes[step], c.there[step], c.never[step] = p, bytes, true, invalid
	})
	if err != nil {
		return fmt.Errorf("read %d blocks: %w", len(blocks), err)
	}
	for _, c := range all {
		r.decide(c)
		if err := f(c); err != nil {
			return err
		}
	}
	return nil
}

func (r *redo) newBlockPlan(block workqueue.Block, size int) *blockPlan {
	n := len(r.steps)
	c := &blockPlan{block: block, size: size, bytes: make([]int64, n), at: make([]plane.Planes, n), there: make([]bool, n),
		live: make([]bitfield.Set, n), slices: r.live[block], moves: make([]stepMoves, n), wanted: make([]bitfield.Set, n),
		never: make([]bitfield.Set, n)}
	for _, s := range c.slices {
		c.live[s.step] = c.live[s.step].Or(s.remaining)
	}
	for _, s := range r.named {
		if mask := r.wanted[s][block]; mask != nil {
			c.wanted[s] = *mask
		}
	}
	return c
}

// decide visits the steps in order. Resetting an item at a step cancels its results and requests at later steps:
// nothing that depends on a part is ready or in flight while the part is being recomputed.
func (r *redo) decide(c *blockPlan) {
	n := len(r.steps)
	now := make([]plane.Planes, n)
	st := plane.Eligibility{Settled: make([]bitfield.Set, n), Open: make([]bitfield.Set, n), Shut: make([]bitfield.Set, n)}
	for _, s := range r.family {
		p, m := &c.at[s], &c.moves[s]
		for _, need := range r.graph.Steps[s].Needs {
			m.up = m.up.Or(c.moves[need].up).Or(c.moves[need].reset)
		}
		outcome := p.Done.Or(p.Failed)
		m.reset = c.wanted[s].And(r.takes(s, p, &c.live[s]))
		if !r.corrected {
			m.reset = m.reset.AndNot(c.never[s])
		}
		after := m.up.AndNot(m.reset)
		if r.again {
			m.again = after.And(outcome)
		}
		m.kept = after.And(outcome).AndNot(m.again)
		m.stopped = m.up.Or(m.reset).And(c.live[s])
		m.final = m.reset.Or(m.again).And(outcome)
		now[s] = *p
		now[s].Leave(m.final)
		r.graph.Stand(&st, now, s) // for the steps before this one
		m.out = after.And(p.Skipped).And(st.Shut[s])
		m.gone = m.final.Or(m.up.And(p.Ready.Or(p.Held))).Or(after.And(p.Skipped).AndNot(m.out))
		now[s].Leave(m.gone)
		r.graph.Stand(&st, now, s)
		m.ready = m.reset.And(st.Open[s])
	}
}

// takes is the items whose outcome or request at a step can be discarded.
func (r *redo) takes(s workqueue.Step, p *plane.Planes, live *bitfield.Set) bitfield.Set {
	items := p.Failed
	if r.blind[s] {
		return items
	}
	if r.take.done {
		items = items.Or(p.Done)
	}
	if r.take.live {
		items = items.Or(*live)
	}
	return items
}

func (c *blockPlan) first() (items bitfield.Set) {
	for s := range c.moves {
		items = items.Or(c.moves[s].ready)
	}
	return items
}

// holdBack holds the items outside the sample and returns their number. place is the next position to sample.
func (c *blockPlan) holdBack(sample *plane.Sample, place *int64) (held int64) {
	items := c.first()
	var rest bitfield.Set
	for bit := range items.All() {
		if !sample.Has(*place) {
			rest.Add(bit)
			held++
		}
		*place++
	}
	for s := range c.moves {
		m := &c.moves[s]
		m.held = m.ready.And(rest)
		m.ready = m.ready.AndNot(rest)
	}
	return held
}

type redoWrite struct {
	steps                    []workqueue.Step
	blocks                   []workqueue.Block
	gone, final, ready, held []bitfield.Set
	slices                   []workqueue.SliceID
	stopped                  []bitfield.Set
	requests                 []workqueue.Sent // of the slices that became empty
}

func (w *redoWrite) add(c *blockPlan) {
	for s := range c.moves {
		m := &c.moves[s]
		if m.gone.Empty() && m.ready.Empty() && m.held.Empty() {
			continue
		}
		w.steps, w.blocks = append(w.steps, workqueue.Step(s)), append(w.blocks, c.block)
		w.gone, w.final = append(w.gone, m.gone), append(w.final, m.final)
		w.ready, w.held = append(w.ready, m.ready), append(w.held, m.held)
	}
	for _, l := range c.slices {
		stopped := l.remaining.And(c.moves[l.step].stopped)
		if stopped.Empty() {
			continue
		}
		w.slices, w.stopped = append(w.slices, l.ID), append(w.stopped, stopped)
		if stopped == l.remaining {
			w.requests = append(w.requests, l.Sent)
		}
	}
}

// redoBlocks moves bits; it repeats the condition that chose those with an outcome. The size of a block's results is
// scaled to the remaining ones. A discarded failure is no longer accepted or invalid.
const redoBlocks = `
UPDATE work_block b
SET ready = (b.ready & ~u.gone) | u.ready, done = b.done & ~u.gone, failed = b.failed & ~u.gone,
    held = nullif((coalesce(b.held, B'0'::bit(8192)) & ~u.gone) | u.held, B'0'::bit(8192)),
    skipped = nullif(coalesce(b.skipped, B'0'::bit(8192)) & ~u.gone, B'0'::bit(8192)),
    accepted = nullif(b.accepted & ~u.gone, B'0'::bit(8192)),
    invalid = nullif(b.invalid & ~u.gone, B'0'::bit(8192)),
    result_bytes = CASE WHEN (b.done & u.gone) = B'0'::bit(8192) THEN b.result_bytes
                        ELSE b.result_bytes * bit_count(b.done & ~u.gone) / bit_count(b.done) END
FROM unnest($2::smallint[], $3::int[], $4::bit(8192)[], $5::bit(8192)[], $6::bit(8192)[], $7::bit(8192)[])
     AS u (step, block, gone, final, ready, held)
WHERE b.run_id = $1 AND b.step = u.step AND b.block = u.block AND ((b.done | b.failed) & u.gone) = u.final`

func (w *redoWrite) send(ctx context.Context, tx pgx.Tx, run workqueue.RunID) error {
	batch := &pgx.Batch{}
	var want []int
	if n := len(w.slices); n > 0 {
		batch.Queue(withdrawSlices, w.slices, pgbits.Slice(w.stopped))
		want = append(want, n)
	}
	if n := len(w.blocks); n > 0 {
		batch.Queue(redoBlocks, run, w.steps, w.blocks, pgbits.Slice(w.gone), pgbits.Slice(w.final),
			pgbits.Slice(w.ready), pgbits.Slice(w.held))
		want = append(want, n)
	}
	if batch.Len() == 0 {
		return nil
	}
	results := tx.SendBatch(ctx, batch)
	for _, n := range want {
		if err := pg.CheckRows(n)(results.Exec()); err != nil {
			_ = results.Close() // the first error is returned
			return fmt.Errorf("take items of run %s back: %w", run, err)
		}
	}
	err := results.Close()
	return pg.Wrap(err, "take items of run %s back", run)
}
