package doctor

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// work_slice_block. remaining matters only while the slice is live.
const doctorSlices = `
SELECT id, mask, remaining, state IN ('scheduled', 'claimed', 'sent'), done_items, failed_items
FROM work_slice WHERE run_id = $1 AND step = $2 AND block = $3`

// A range of work_result's primary key, in order. Large results are looked up by keys.
const doctorParts = `
SELECT ordinal, generation, slice_id, error_code IS NOT NULL,
    CASE WHEN large_id IS NULL THEN false ELSE NOT EXISTS (
        SELECT FROM large_result l WHERE l.id = large_id AND l.recorded_at IS NOT NULL
            AND l.pieces = (SELECT count(*) FROM work_piece c WHERE c.large_id = l.id)) END
FROM work_result WHERE run_id = $1 AND step = $2 AND ordinal BETWEEN $3 AND $4
ORDER BY ordinal, generation`

func (d *doctor) block(ctx context.Context, r *doctorRun, steps []stepBlock, totals *runTotals) error {
	settled, failed, open := bitfield.Full(bitfield.Size), bitfield.Set{}, bitfield.Set{}
	for i := range steps {
		b := &steps[i]
		if err := d.stepBlock(ctx, r, b, totals); err != nil {
			return err
		}
		settled = settled.And(b.Final())
		if int(b.step) < len(r.graph.Steps) && !r.graph.Steps[b.step].Optional {
			failed, open = failed.Or(b.Failed), open.Or(b.Failed.AndNot(b.accepted))
		}
	}
	d.steady(r, steps)
	if r.graph.Ordered {
		totals.active[steps[0].block] = underWay(steps, settled)
	}
	done := settled.AndNot(failed)
	totals.done += int64(done.Count())
	lost := settled.And(failed)
	totals.failed += int64(lost.Count())
	accepted := failed.AndNot(open)
	totals.accepted += int64(accepted.Count())

	at := place{run: &r.id, block: &steps[0].block}
	group, ok := totals.groups[steps[0].block]
	if !ok || group.size != steps[0].size {
		d.found(TruthsAgree, at, 1, "the tracker has no group of this size for the block")
		return nil
	}
	final := settled.And(bitfield.Full(group.size))
	d.bits(TruthsAgree, at, group.pending.And(final), "final, and still pending in the tracker")
	d.bits(TruthsAgree, at, bitfield.Full(group.size).AndNot(final).AndNot(group.pending),
		"not final, and not pending in the tracker")
	return nil
}

func (d *doctor) stepBlock(ctx context.Context, r *doctorRun, b *stepBlock, totals *runTotals) error {
	d.report.Blocks++
	totals.sizes[b.step] += int64(b.size)
	batch := &pgx.Batch{}
	batch.Queue(doctorSlices, r.id, b.step, b.block)
	batch.Queue(doctorParts, r.id, b.step, b.block.Ordinal(0), b.block.Ordinal(bitfield.Size-1))
	results := d.tx.SendBatch(ctx, batch)
	defer func() { _ = results.Close() }() // its error is that of the query before

	at := place{run: &r.id, step: &b.step, block: &b.block}
	asked, err := d.slices(results, r, b, at)
	if err != nil {
		return err
	}
	parts := partsCheck{run: r, block: b, asked: asked}
	if err := parts.read(results); err != nil {
		return err
	}
	totals.parts += parts.count
	d.report.Parts += parts.count
	parts.report(d, at)
	return results.Close()
}

// slices reads the slices of a block and checks the planes with them: disjoint, within size, and nothing lost.
func (d *doctor) slices(
	results pgx.BatchResults, r *doctorRun, b *stepBlock, at place,
) (map[workqueue.SliceID]*askedSlice, error) {
	rows, err := results.Query()
	if err != nil {
		return nil, err
	}
	slices := map[workqueue.SliceID]*askedSlice{}
	var live, twice bitfield.Set
	var id workqueue.SliceID
	var s askedSlice
	var remaining bitfield.Set
	var isLive bool
	err = pg.Each(rows, []any{&id, pgbits.Into(&s.mask), pgbits.OrEmpty(&remaining), &isLive, &s.done, &s.failed}, func() {
		d.report.Slices++
		seen := s
		slices[id] = &seen
		if isLive {
			twice = twice.Or(live.And(remaining))
			live = live.Or(remaining)
		}
	})
	if err != nil {
		return nil, err
	}
	all := bitfield.Full(b.size)
	final := b.Final()
	overlap := b.Ready.And(final).Or(b.Done.And(b.Failed)).Or(b.Skipped.And(b.Done.Or(b.Failed)))
	planes := b.Ready.Or(final)
	known := planes.Or(live).Or(b.Held)
	d.bits(ItemsAddUp, at, overlap, "in two planes")
	d.bits(ItemsAddUp, at, twice, "in two live slices")
	d.bits(ItemsAddUp, at, live.And(b.Ready), "ready, and in a live slice")
	d.bits(ItemsAddUp, at, live.And(final), "final, and in a live slice")
	d.bits(ItemsAddUp, at, b.Held.And(planes.Or(live)), "held back, and in another plane or a live slice")
	if r.canary != "sampling" && r.canary != "waiting" && !r.graph.Ordered {
		d.bits(ItemsAddUp, at, b.Held, "held back, and the run has no canary in progress")
	}
	d.bits(ItemsAddUp, at, b.accepted.AndNot(b.Failed), "accepted, and not failed")
	d.bits(ItemsAddUp, at, known.AndNot(all), "past the end of the block")
	b.live = live
	return slices, nil
}

// steady checks the steps of a block against each other: items ready, held or in progress have what they need,
// waiting ones do not, and exactly the skipped ones need what will never exist.
func (d *doctor) steady(r *doctorRun, steps []stepBlock) {
	if len(steps) != len(r.graph.Steps) {
		d.found(ItemsAddUp, place{run: &r.id, block: &steps[0].block}, int64(len(steps)-len(r.graph.Steps)),
			"the block has not a row for each step")
		return
	}
	at := make([]plane.Planes, len(steps))
	for i := range steps {
		at[i] = steps[i].Planes
	}
	eligible := r.graph.Eligibility(at)
	for i := range steps {
		b := &steps[i]
		where := place{run: &r.id, step: &b.step, block: &b.block}
		all, open := bitfield.Full(b.size), eligible.Open[i]
		begun := b.Ready.Or(b.Held).Or(b.live)
		d.bits(ItemsAddUp, where, begun.AndNot(open), "ready, held back or in progress before what it needs is there")
		d.bits(ItemsAddUp, where, b.Skipped.AndNot(eligible.Shut[i]), "left out, and nothing that it needs has failed")
		d.bits(ItemsAddUp, where, eligible.Shut[i].And(all).AndNot(b.Skipped), "not left out, and what it needs has failed")
		if r.state != "cancelled" {
			d.bits(ItemsAddUp, where, open.And(all).AndNot(begun.Or(b.Final())), "lost: in no plane and in no live slice")
		}
	}
}

type partsCheck struct {
	run   *doctorRun
	block *stepBlock
	asked map[workqueue.SliceID]*askedSlice
	count int64

	result, fault     bitfield.Set // by the newest part of each item
	doubled           bitfield.Set // I2
	unaudited         bitfield.Set // I3
	noSlice, notAsked bitfield.Set // I7
	broken            bitfield.Set // I6: pieces of the result are missing
}

// askedSlice is a slice, and how many results and errors it has beyond the parts that were read.
type askedSlice struct {
	mask         bitfield.Set
	done, failed int
}

type partRow struct {
	ordinal    workqueue.Ordinal
	generation workqueue.Generation
	slice      workqueue.SliceID
	fault      bool
	broken     bool
}

func (p *partsCheck) read(results pgx.BatchResults) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	var part, before partRow
	// Plain types: pgx scans them faster, and there are many rows.
	to := []any{(*int32)(&part.ordinal), (*int32)(&part.generation), (*[16]byte)(&part.slice), &part.fault,
		&part.broken}
	err = pg.Each(rows, to, func() {
		_, bit := part.ordinal.Block()
		switch again := p.count > 0 && part.ordinal == before.ordinal; {
		case again && before.generation == part.generation:
			p.doubled.Add(bit)
		case again && before.generation >= p.run.audited:
			p.unaudited.Add(bit)
		}
		p.count++
		p.add(bit, part)
		before = part
	})
	return err
}

func (p *partsCheck) add(bit int, part partRow) {
	plane := &p.block.Done
	if part.fault {
		plane = &p.block.Failed
	}
	if !plane.Has(bit) && part.generation >= p.run.audited {
		p.unaudited.Add(bit)
	}
	p.result.Remove(bit)
	p.fault.Remove(bit)
	if part.fault {
		p.fault.Add(bit)
	} else {
		p.result.Add(bit)
	}
	if part.broken {
		p.broken.Add(bit)
	}
	switch s := p.asked[part.slice]; {
	case s == nil:
		p.noSlice.Add(bit)
	case !s.mask.Has(bit):
		p.notAsked.Add(bit)
	case part.fault:
		s.failed--
	default:
		s.done--
	}
}

func (p *partsCheck) report(d *doctor, at place) {
	d.bits(OnePart, at, p.doubled, "two parts in one generation")
	d.bits(AuditedReset, at, p.unaudited, "a part that no longer counts, without a later rerun in the audit log")
	d.bits(TruthsAgree, at, p.block.Done.AndNot(p.result), "done, and the newest part is not a result")
	d.bits(TruthsAgree, at, p.block.Failed.AndNot(p.fault), "failed, and the newest part is not an error")
	d.bits(TruthsAgree, at, p.broken, "a result with missing pieces")
	d.bits(AskedFor, at, p.noSlice, "parts whose slice does not exist, or belongs to another block, step or run")
	d.bits(AskedFor, at, p.notAsked, "parts of items that their slice did not hold")
	for id, s := range p.asked {
		if s.done != 0 || s.failed != 0 {
			d.found(TruthsAgree, at, int64(s.done+s.failed), "slice "+id.String()+" counts other results or errors than parts")
		}
	}
}
