// Package redo reruns, resets and corrects items of runs. It also accepts failures, which are selected in the same
// ways. Each operation is one transaction, all or nothing, under a new generation; late answers to discarded
// requests are fenced off.
package redo

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Store redoes parts of runs. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// redo moves items back to be redone at some steps, in one transaction. Resets and reruns differ in the items they
// take and in their reports. It locks, in the common order: all steps of the run, which keeps claims out; the live
// slices with reset items, also at later steps; the blocks; the tracker; the run.
type redo struct {
	tx        pgx.Tx
	run       workqueue.RunID
	sel       *Selection
	take      scope
	corrected bool                    // invalid items become valid
	blind     map[workqueue.Step]bool // only failures are taken of these steps, regardless of take
	again     bool                    // redo all results of later steps
	canary    int                     // size of a sample that goes first; 0: all

	seal       *database.Seal
	graph      *plane.Graph
	steps      []control.StepSettings
	state      string
	generation workqueue.Generation // before the redo
	items      int64                // of the run

	named  []workqueue.Step
	wanted map[workqueue.Step]blockMasks // by named step
	family []workqueue.Step              // the named ones, later ones, and all that those need
	blocks []workqueue.Block             // of the wanted items
	live   map[workqueue.Block][]*liveSlice
	chunks map[workqueue.Step]int // current; nil if requests are not counted
	lanes  []*settle.LaneRow      // of the wanted items, in a run with lanes

	sums     []stepSum
	moved    []tracker.Ack // the items taken, by block
	held     int64
	slices   int64
	requests []workqueue.Sent // withdrawn entirely
}

type scope struct {
	done bool // results; errors always are
	live bool // requests in flight or about to be retried
}

type stepSum struct {
	reset     int64 // of a named step: will be redone
	ready     int64 // of those, ready now
	withdrawn int64 // removed from slices
	redone    int64 // of a later step: redone in any case
	kept      int64 // of a later step: redone only if a part that it sees changes
	waiting   int64 // of a later step: not done, and waits for the parts
	leftOut   int64 // of a later step: still skipped

	pending int64                    // wanted at a named step, and already due
	invalid int64                    // wanted, but violating the run's schema
	out     int64                    // wanted, and in flight
	waits   map[workqueue.Step]int64 // wanted, and waiting for a step
	causes  map[workqueue.Step]int64 // wanted, and skipped because a step failed
}

func (r *redo) begin(ctx context.Context, db *database.DB, op string) (err error) {
	if r.steps, err = control.LockSteps(ctx, r.tx, r.run); err != nil {
		return err
	}
	if r.seal, err = db.SealAgain(ctx, r.tx, r.run, op); err != nil {
		return err
	}
	r.graph, err = database.Kept[plane.GraphCache](db).Of(ctx, r.tx, r.run)
	return err
}

const runState = `
SELECT state, generation, items, opened AND sealed_at IS NULL FROM batchrun WHERE id = $1`

func (r *redo) readState(ctx context.Context) (open bool, err error) {
	err = r.tx.QueryRow(ctx, runState, r.run).Scan(&r.state, &r.generation, &r.items, &open)
	return open, pg.Wrap(pg.NoRow(err, workqueue.ErrNotFound), "run %s", r.run)
}

// may refuses a run that cannot be redone. op is the operation, for errors.
func (r *redo) may(ctx context.Context, op string) (open bool, err error) {
	open, err = r.readState(ctx)
	switch {
	case err != nil:
		return false, err
	case r.state == "cancelled":
		return open, &workqueue.StateError{Run: r.run, State: r.state, Op: op,
			Fix: fmt.Sprintf("resume it first: tranche run resume %s; or start a new run", r.run)}
	case r.state == "loading":
		return open, &workqueue.StateError{Run: r.run, State: r.state, Op: op, Fix: "wait until it has loaded"}
	}
	return open, nil
}

func (r *redo) find(ctx context.Context) error {
	if r.sel.seen != nil && r.sel.seen.generation != r.generation {
		r.sel.seen = nil // the run has changed, and is read again
	}
	wanted, err := r.sel.find(ctx, r.tx, r.run, r.items, r.named)
	if err != nil {
		return err
	}
	r.wanted = wanted
	r.reach()
	return nil
}

func (r *redo) reach() {
	wanted := r.wanted
	r.named = slices.DeleteFunc(slices.Clone(r.named), func(s workqueue.Step) bool { return len(wanted[s]) == 0 })
	seen := map[workqueue.Block]bool{}
	family := map[workqueue.Step]bool{0: true} // the first step's block is the gate of all steps
	for _, s := range r.named {
		for b := range wanted[s] {
			seen[b] = true
		}
		family[s] = true
		for _, later := range r.graph.After[s] {
			family[later] = true
		}
	}
	for s := range family {
		for _, earlier := range r.graph.Before[s] {
			family[earlier] = true
		}
	}
	r.blocks, r.family = plane.Sorted(seen), plane.Sorted(family)
}

// lockRedoBlocks locks the blocks in the common order. They are read afterwards, in batches.
const lockRedoBlocks = `
SELECT count(*) FROM (
    SELECT 1 FROM work_block WHERE run_id = $1 AND step = ANY($2) AND block = ANY($3)
    ORDER BY step, block FOR NO KEY UPDATE) locked`

func (r *redo) hold(ctx context.Context) error {
	if err := r.lockLive(ctx); err != nil {
		return err
	}
	first, err := r.lockLanes(ctx)
	if err != nil {
		return err
	}
	first = append(first, r.blocks...)
	steps := r.family
	if r.graph.Ordered {
		steps = r.graph.Numbers() // the next item of a lane may change at all of them
	}
	_, err = r.tx.Exec(ctx, lockRedoBlocks, r.run, steps, first)
	return pg.Wrap(err, "lock %d blocks", len(r.blocks))
}

const redoPart = 64

// move decides and writes what happens to the items. It first counts them, for a canary's sample.
func (r *redo) move(ctx context.Context) error {
	r.sums = make([]stepSum, len(r.steps))
	var sample *plane.Sample
	if r.canary > 0 {
		var total int64
		err := r.eachBlockPlan(ctx, func(c *blockPlan) error {
			items := c.first()
			total += int64(items.Count())
			return nil
		})
		if err != nil {
			return err
		}
		if total > 0 {
			sample = new(plane.NewSample(r.canary, total))
		}
	}
	place := int64(0)
	for part := range slices.Chunk(r.blocks, redoPart) {
		w := redoWrite{}
		err := r.readColumns(ctx, part, func(c *blockPlan) error {
			if sample != nil {
				r.held += c.holdBack(sample, &place)
			}
			if r.graph.Ordered {
				c.waitInLane()
			}
			r.account(c)
			w.add(c)
			return nil
		})
		if err != nil {
			return err
		}
		r.requests = append(r.requests, w.requests...)
		if err := w.send(ctx, r.tx, r.run); err != nil {
			return err
		}
	}
	if err := r.lineUp(ctx); err != nil {
		return err
	}
	return r.shutBarriers(ctx)
}

func (r *redo) eachBlockPlan(ctx context.Context, f func(*blockPlan) error) error {
	for part := range slices.Chunk(r.blocks, redoPart) {
		if err := r.readColumns(ctx, part, f); err != nil {
			return err
		}
	}
	return nil
}

func (r *redo) total() (n int64) {
	for i := range r.moved {
		n += int64(r.moved[i].Mask.Count())
	}
	return n
}

func (r *redo) account(c *blockPlan) {
	var items bitfield.Set
	for _, s := range r.family {
		m, sum := &c.moves[s], &r.sums[s]
		items = items.Or(m.reset)
		sum.reset += int64(m.reset.Count())
		sum.ready += int64(m.ready.Count() + m.held.Count())
		sum.withdrawn += int64(m.stopped.Count())
		sum.redone += int64(m.again.Count())
		sum.kept += int64(m.kept.Count())
		sum.leftOut += int64(m.out.Count())
		waiting := m.up.AndNot(m.reset).AndNot(m.again).AndNot(m.kept).AndNot(m.out)
		sum.waiting += int64(waiting.Count())
		if slices.Contains(r.named, s) {
			r.explain(c, s, sum)
		}
		if chunk := r.chunks[s]; chunk > 0 {
			r.slices += c.requests(s, chunk, r.steps[s].ChunkBytes)
		}
	}
	if !items.Empty() {
		r.moved = append(r.moved, tracker.Ack{Group: int(c.block), Mask: items})
	}
}

// requests is how many slices the redone items of a step would be cut into.
func (c *blockPlan) requests(s workqueue.Step, chunk, chunkBytes int) int64 {
	if chunkBytes > 0 {
		chunk = min(chunk, max(1, chunkBytes/int(c.bytes[s]/int64(c.size)+plane.Envelope)))
	}
	m := &c.moves[s]
	held := m.held.Count()
	now := m.reset.Count() - held
	return int64((now+chunk-1)/chunk + (held+chunk-1)/chunk)
}

func (r *redo) shutBarriers(ctx context.Context) error {
	var later []workqueue.Step
	for s := range r.sums {
		if r.sums[s].reset > 0 {
			later = append(later, r.graph.After[s]...)
		}
	}
	if len(later) == 0 {
		return nil
	}
	_, err := r.tx.Exec(ctx, shutBarriers, r.run, later)
	return pg.Wrap(err, "reset the barriers of run %s", r.run)
}

const shutBarriers = `
UPDATE run_step SET barrier_passed = false, gate_since = NULL, approved_at = NULL, approved_by = '',
    gate_closed_at = CASE WHEN approval IS NOT NULL THEN tranche_now() END
WHERE run_id = $1 AND step = ANY($2) AND barrier AND (barrier_passed OR gate_since IS NOT NULL)`
