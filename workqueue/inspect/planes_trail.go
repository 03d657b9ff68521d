package inspect

import (
	"context"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

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
