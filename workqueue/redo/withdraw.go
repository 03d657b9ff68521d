package redo

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/settle"
)

type liveSlice struct {
	workqueue.Sent

	step      workqueue.Step
	block     workqueue.Block
	remaining bitfield.Set
}

const (
	// The live slices of some steps with some items that are not locked so far, by work_slice_live.
	liveOf = `
FROM work_slice s JOIN unnest($3::int[], $4::bit(8192)[]) AS u (block, mask) ON u.block = s.block
WHERE s.run_id = $1 AND s.step = ANY($2::smallint[]) AND s.state IN ('scheduled', 'claimed', 'sent')
    AND (s.remaining & u.mask) <> B'0'::bit(8192) AND NOT s.id = ANY($5::uuid[])`

	lockLiveOf = `
SELECT s.id, coalesce(s.stream_seq, 0), coalesce(s.stream_epoch, 0), s.step, s.block, s.remaining` + liveOf + `
ORDER BY s.id FOR NO KEY UPDATE OF s`

	moreLiveOf = `SELECT EXISTS (SELECT` + liveOf + `)`

	// A late answer finds the items gone from its slice, or the slice ended: withdrawn items count as answered. A
	// scheduled slice was sent nowhere, and is claimed by its mask.
	withdrawSlices = `
UPDATE work_slice s
SET remaining = nullif(s.remaining & ~u.mask, B'0'::bit(8192)),
    mask = CASE WHEN s.state = 'scheduled' AND s.remaining <> u.mask THEN s.mask & ~u.mask ELSE s.mask END,
    state = CASE WHEN (s.remaining & ~u.mask) = B'0'::bit(8192) THEN 'cancelled' ELSE s.state END,
    ended_at = CASE WHEN (s.remaining & ~u.mask) = B'0'::bit(8192) THEN tranche_now() END,
    error_code = CASE WHEN (s.remaining & ~u.mask) = B'0'::bit(8192) THEN 'reset' ELSE s.error_code END,
    error_message = CASE WHEN (s.remaining & ~u.mask) = B'0'::bit(8192) THEN 'its items were reset'
                         ELSE s.error_message END
FROM unnest($1::uuid[], $2::bit(8192)[]) AS u (id, mask)
WHERE s.id = u.id AND s.state IN ('scheduled', 'claimed', 'sent') AND (s.remaining & u.mask) = u.mask`
)

// lockLive locks the live slices from which items may be removed. The previous holder of a lock may have made new
// slices, so it searches until none remain; nothing can be claimed meanwhile.
func (r *redo) lockLive(ctx context.Context) error {
	steps := r.mayBeLive()
	if len(steps) == 0 {
		return nil
	}
	r.live = map[workqueue.Block][]*liveSlice{}
	masks := make([]bitfield.Set, len(r.blocks))
	for i, b := range r.blocks {
		for _, s := range r.named {
			if mask := r.wanted[s][b]; mask != nil {
				masks[i] = masks[i].Or(*mask)
			}
		}
	}
	locked := []workqueue.SliceID{}
	for more := true; more; {
		args := []any{r.run, steps, r.blocks, pgbits.Slice(masks), locked}
		found, err := pg.Collect(ctx, r.tx, scanLive, lockLiveOf, args...)
		if err != nil {
			return fmt.Errorf("lock slices: %w", err)
		}
		for _, l := range found {
			locked = append(locked, l.ID)
			r.live[l.block] = append(r.live[l.block], l)
		}
		args[len(args)-1] = locked
		if err := r.tx.QueryRow(ctx, moreLiveOf, args...).Scan(&more); err != nil {
			return fmt.Errorf("find slices: %w", err)
		}
	}
	return nil
}

func scanLive(row pgx.CollectableRow) (*liveSlice, error) {
	l := &liveSlice{}
	return l, row.Scan(&l.ID, &l.StreamSeq, &l.StreamsEpoch, &l.step, &l.block, pgbits.Into(&l.remaining))
}

func (r *redo) mayBeLive() []workqueue.Step {
	steps := map[workqueue.Step]bool{}
	for _, s := range r.named {
		if r.take.live {
			steps[s] = true
		}
		for _, later := range r.graph.After[s] {
			steps[later] = true
		}
	}
	return plane.Sorted(steps)
}

// The row is locked, and its new hold and canary are derived from it.
const rearmRun = `
WITH paced AS (` + control.ClearPace + `)
UPDATE batchrun
SET state = 'running', generation = generation + 1, done = NULL, failed = NULL, accepted = 0,
    finished_at = NULL, done_by = CASE WHEN done_by > tranche_now() THEN done_by END, at_risk = NULL,
    gentle = gentle AND coalesce(done_by > tranche_now(), false),
    started_at = tranche_now(), hold = nullif($3, ''), hold_detail = $4, held_at = $5, held_by = $6,
    canary = coalesce($7, canary), canary_auto_approve = coalesce($8, canary_auto_approve),
    canary_state = nullif($9, ''),
    canary_generation = CASE WHEN $7 IS NULL THEN canary_generation ELSE generation + 1 END
WHERE id = $1 AND state IN ('running', 'completed') AND generation = $2
RETURNING generation`

type newCanary struct {
	items    int
	auto     bool
	sampling bool // it does start
}

// rearm opens the next generation: tracker first, run last, by lock order. It returns the run's hold.
func (r *redo) rearm(ctx context.Context, c *newCanary, d *ledger.Difference) (*control.RunHold, error) {
	if len(r.moved) > 0 { // else the run is in progress, and what was corrected is done anyway
		if _, err := tracker.Rearm(ctx, r.tx, uuid.UUID(r.run), r.moved); err != nil {
			return nil, err
		}
	}
	if err := settle.AnswerFailFast(ctx, r.tx, r.run); err != nil {
		return nil, fmt.Errorf("end the fail-fast limits of run %s: %w", r.run, err)
	}
	runs, err := control.LockHolds(ctx, r.tx, &control.Control{Run: r.run}, "")
	if err != nil {
		return nil, err
	}
	run := runs[0]
	hold := run.Hold
	sampling := run.Rearm(c != nil && c.items > 0, r.held > 0)
	d.Add("hold", string(hold), string(run.Hold))
	var canary *int
	var auto *bool
	if sampling && c != nil {
		c.sampling = true
		canary, auto = &c.items, &c.auto
	}
	err = r.tx.QueryRow(ctx, rearmRun, r.run, r.generation, string(run.Hold), run.Detail, run.At, run.By, canary, auto,
		run.Canary).Scan(&run.Generation)
	return run, pg.Wrap(err, "open the next generation of run %s", r.run)
}

// seen is what the evidence of a selection matched before the run was locked: reading payloads and results takes
// time in proportion to the run, and claims would wait. It stays valid under the locks within the same generation,
// in which payloads do not change and parts are only added; parts recorded meanwhile are evaluated again.
type seen struct {
	generation workqueue.Generation
	items      blockMasks                    // whose payload matches; nil: not evaluated
	parts      map[workqueue.Step]blockMasks // that match; nil: not evaluated
	recorded   map[workqueue.Step]blockMasks // in this generation by then
}

const (
	generationOf = `SELECT generation FROM batchrun WHERE id = $1`

	stepsToSee = `SELECT step FROM run_step WHERE run_id = $1 AND ($2 = '' OR name = $2) ORDER BY step`

	// recordedParts scans work_result's primary key only.
	recordedParts = `
SELECT step, ordinal FROM work_result WHERE run_id = $1 AND step = ANY ($2) AND generation = $3`
)

func (s Store) see(ctx context.Context, run workqueue.RunID, sel *Selection) error {
	if sel.empty() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, database.OperatorTimeout)
	defer cancel()
	return s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		found := &seen{}
		err := tx.QueryRow(ctx, generationOf, run).Scan(&found.generation)
		if err != nil { // the caller reports under its lock that there is no such run
			return pg.Wrap(pg.NoRow(err, nil), "read run %s", run)
		}
		steps, err := pg.Collect(ctx, tx, pgx.RowTo[workqueue.Step], stepsToSee, run, sel.Step)
		if err != nil {
			return fmt.Errorf("read the steps of run %s: %w", run, err)
		}
		if err := found.read(ctx, tx, run, steps, &sel.Evidence); err != nil {
			return err
		}
		sel.seen = found
		return nil
	})
}

func (f *seen) read(ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step, e *Evidence,
) (err error) {
	if err := e.checkPaths(ctx, tx, run); err != nil {
		return err
	}
	if e.ofItems() {
		if f.items, err = e.itemsThatFit(ctx, tx, run); err != nil {
			return err
		}
	}
	if !e.ofParts() {
		return nil
	}
	if f.parts, err = e.partsThatFit(ctx, tx, run, steps, nil); err != nil {
		return err
	}
	f.recorded, err = recordedIn(ctx, tx, run, steps, f.generation)
	return err
}

func recordedIn(ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step,
	generation workqueue.Generation,
) (map[workqueue.Step]blockMasks, error) {
	all, err := masksAt(pg.Rows(ctx, tx, recordedParts, run, steps, generation))
	return all, pg.Wrap(err, "find what was recorded")
}

func (f *seen) catchUp(ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step, e *Evidence) error {
	now, err := recordedIn(ctx, tx, run, steps, f.generation)
	if err != nil {
		return err
	}
	var ordinals []workqueue.Ordinal
	for s, blocks := range now {
		for b, items := range blocks {
			fresh := *items
			if before := f.recorded[s][b]; before != nil {
				fresh = fresh.AndNot(*before)
			}
			for bit := range fresh.All() {
				ordinals = append(ordinals, b.Ordinal(bit))
			}
			if fits := f.parts[s][b]; fits != nil {
				*fits = fits.AndNot(fresh)
			}
		}
	}
	f.recorded = now
	if len(ordinals) == 0 {
		return nil
	}
	fresh, err := e.partsThatFit(ctx, tx, run, steps, ordinals)
	if err != nil {
		return err
	}
	for s, blocks := range fresh {
		for b, items := range blocks {
			for bit := range items.All() {
				masksOf(f.parts, s).add(b.Ordinal(bit))
			}
		}
	}
	return nil
}
