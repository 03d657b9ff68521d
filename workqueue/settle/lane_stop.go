package settle

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Bounds of one transaction that ends the items of stopped lanes.
const (
	stoppedLanes = 500
	stoppedItems = 5000
)

const (
	// runWithStopped visits the runs with such lanes, after a given one, until one is in progress; by work_lane_due,
	// so finished runs cost nothing. OFFSET 0 keeps the planner from reading them all.
	runWithStopped = `
WITH RECURSIVE due AS (
    (SELECT l.run_id FROM work_lane l WHERE l.due AND l.run_id > $1 ORDER BY l.run_id, l.lane LIMIT 1)
    UNION ALL
    SELECT n.run_id FROM due d CROSS JOIN LATERAL (
        SELECT l.run_id FROM work_lane l WHERE l.due AND l.run_id > d.run_id ORDER BY l.run_id, l.lane LIMIT 1) n
    WHERE NOT EXISTS (SELECT FROM batchrun o WHERE o.id = d.run_id AND o.state = 'running')
)
SELECT d.run_id, r.generation FROM due d
CROSS JOIN LATERAL (SELECT o.generation FROM batchrun o WHERE o.id = d.run_id AND o.state = 'running' OFFSET 0) r`

	// lockStopped locks lanes in order and looks up which item stopped each.
	lockStopped = `
SELECT l.lane, l.low, l.stopped_by,
    (SELECT q.item_key FROM work_queue q WHERE q.run_id = $1 AND q.ordinal = l.stopped_by)
FROM work_lane l WHERE l.run_id = $1 AND l.due ORDER BY l.lane LIMIT $2 FOR NO KEY UPDATE`

	// heldInLanes is nextHeld for several items of each lane.
	heldInLanes = `
SELECT u.lane, n.ordinal, n.steps
FROM unnest($2::bigint[], $3::int[]) AS u (lane, first) CROSS JOIN LATERAL (
    SELECT o.ordinal, at.steps FROM work_order o CROSS JOIN LATERAL (
        SELECT array_agg(b.step) AS steps FROM work_block b
        WHERE b.run_id = $1 AND b.step = ANY ($4::smallint[]) AND b.block = o.ordinal / 8192
            AND get_bit(b.held, o.ordinal % 8192) = 1) at
    WHERE o.run_id = $1 AND o.lane = u.lane AND o.ordinal >= u.first AND at.steps IS NOT NULL
    ORDER BY o.lane, o.ordinal LIMIT $5) n
ORDER BY n.ordinal`

	// unholdBlocks removes items from the held planes of locked blocks, checking again that they were held.
	unholdBlocks = `
UPDATE work_block b SET held = nullif(b.held & ~u.bits, B'0'::bit(8192))
FROM unnest($1::uuid[], $2::smallint[], $3::int[], $4::bit(8192)[]) AS u (run_id, step, block, bits)
WHERE b.run_id = u.run_id AND b.step = u.step AND b.block = u.block AND (b.held & u.bits) = u.bits`

	// insertStopped inserts the slices that the items' errors belong to. They were never sent.
	insertStopped = `
INSERT INTO work_slice (id, run_id, step, block, generation, mask, state, attempt, cause, root, error_code,
                        error_message, error_retry, ended_at, failed_items)
SELECT u.id, $1, u.step, u.block, $2, u.mask, 'cancelled', 1, 'ready', u.id, $3,
       'an item of the same lane failed before these', false, tranche_now(), bit_count(u.mask)
FROM unnest($4::uuid[], $5::smallint[], $6::int[], $7::bit(8192)[]) AS u (id, step, block, mask)`
)

func (s *settlement) unheldArgs() []any {
	rows := lockOrder(s.unheld)
	bits := make([]bitfield.Set, len(rows))
	for i, id := range rows {
		bits[i] = s.unheld[id]
	}
	return append(plane.Columns(rows), pgbits.Slice(bits))
}

// EndStopped fails the items that wait in stopped lanes with [workqueue.CodeStopped], without trying them. It returns
// their number, also if ctx ended first. An error in one run does not block other runs. Leader work.
func (s Store) EndStopped(ctx context.Context, lease workqueue.Lease) (int, error) {
	return s.OverRuns(ctx, "end what waits in stopped lanes", func(after workqueue.RunID) (p Progress, err error) {
		err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
			p, err = s.endStopped(ctx, tx, after)
			return err
		})
		return p, err
	})
}

// Progress is what one transaction did for the first run after another one.
type Progress struct {
	Run  workqueue.RunID // zero: none; also set if its transaction failed
	Done int
	More bool // there may be more to do for it
}

// OverRuns calls do for each run while there is more to do without error. It returns the total and all errors.
func (s Store) OverRuns(ctx context.Context, what string, do func(after workqueue.RunID) (Progress, error),
) (total int, failed error) {
	var after workqueue.RunID
	for {
		p, err := do(after)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", what, err))
		} else {
			total += p.Done
		}
		if p.Run == (workqueue.RunID{}) || ctx.Err() != nil || errors.Is(err, workqueue.ErrNotLeader) {
			return total, failed
		}
		if err != nil || !p.More {
			after = p.Run
		}
	}
}

type stopping struct {
	run        workqueue.RunID
	generation workqueue.Generation
	graph      *plane.Graph
	lanes      []*stoppedLane
	slices     map[plane.BlockID]*plane.HeldSlice
	set        *settlement
}

type stoppedLane struct {
	lane      int64
	low, stop workqueue.Ordinal
	key       *string // of the item that stopped it
	items     int     // that end here
}

func (s Store) endStopped(ctx context.Context, tx pgx.Tx, after workqueue.RunID) (p Progress, err error) {
	st := &stopping{slices: map[plane.BlockID]*plane.HeldSlice{},
		set: newSettlement(&pg.CopyRows{}, database.Kept[plane.GraphCache](s.db))}
	err = tx.QueryRow(ctx, runWithStopped, after).Scan(&st.run, &st.generation)
	if err != nil {
		return p, pg.Wrap(pg.NoRow(err, nil), "find stopped lanes")
	}
	p.Run = st.run
	if st.graph, err = database.Kept[plane.GraphCache](s.db).Of(ctx, tx, st.run); err != nil {
		return p, err
	}
	if err := st.lock(ctx, tx); err != nil || len(st.lanes) == 0 { // none: a rerun has just continued them
		return p, err
	}
	p.More = true
	p.Done, err = st.end(ctx, tx)
	return p, err
}

func (st *stopping) lock(ctx context.Context, tx pgx.Tx) (err error) {
	rows := pg.Rows(ctx, tx, lockStopped, st.run, stoppedLanes)
	st.lanes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*stoppedLane, error) {
		l := &stoppedLane{}
		return l, row.Scan(&l.lane, &l.low, &l.stop, &l.key)
	})
	return pg.Wrap(err, "lock stopped lanes")
}

func (st *stopping) end(ctx context.Context, tx pgx.Tx) (int, error) {
	each := stoppedItems/len(st.lanes) + 1
	lanes, low := make([]int64, len(st.lanes)), make([]workqueue.Ordinal, len(st.lanes))
	byLane := map[int64]*stoppedLane{}
	for i, l := range st.lanes {
		lanes[i], low[i] = l.lane, l.low
		byLane[l.lane] = l
	}
	var lane int64
	var item Follower
	total := 0
	err := pg.Each(pg.Rows(ctx, tx, heldInLanes, st.run, lanes, low, st.graph.Numbers(), each),
		[]any{&lane, &item.Item, &item.Steps}, func() {
			total++
			st.fail(byLane[lane], &item)
		})
	if err != nil {
		return 0, fmt.Errorf("find items of stopped lanes: %w", err)
	}
	if err := st.insert(ctx, tx); err != nil {
		return 0, err
	}
	if err := st.set.apply(ctx, tx); err != nil {
		return 0, fmt.Errorf("end %d items of stopped lanes: %w", total, err)
	}
	var moved LaneMoves
	for _, l := range st.lanes {
		var from *workqueue.Ordinal
		if l.items == each { // there may be more
			from = &l.low
		}
		moved.Set(l.lane, nil, from, &l.stop)
	}
	batch := &pgx.Batch{}
	moved.queue(batch, st.run)
	err = tx.SendBatch(ctx, batch).Close()
	return total, pg.Wrap(err, "note the end of stopped lanes")
}

// fail ends one item at the steps that hold it. Later steps are skipped: no step of such a run is optional.
func (st *stopping) fail(l *stoppedLane, item *Follower) {
	l.items++
	l.low = item.Item + 1
	block, bit := item.Item.Block()
	message := "an item of the same lane failed before it"
	if l.key != nil {
		message = fmt.Sprintf("item %.80q of the same lane failed before it", *l.key)
	}
	for _, step := range item.Steps {
		id := plane.BlockID{Run: st.run, Step: step, Block: block}
		h := st.slices[id]
		if h == nil {
			h = &plane.HeldSlice{Slice: workqueue.Slice{ID: workqueue.NewSliceID(), Run: st.run, Step: step, Block: block,
				Generation: st.generation}}
			st.slices[id] = h
		}
		h.Mask.Add(bit)
		st.set.fail(h, bit, workqueue.SlotError{Code: workqueue.CodeStopped, Message: message})
	}
}

func (st *stopping) insert(ctx context.Context, tx pgx.Tx) error {
	st.set.unheld = map[plane.BlockID]bitfield.Set{}
	var ids []workqueue.SliceID
	var steps []workqueue.Step
	var blocks []workqueue.Block
	var masks []bitfield.Set
	for _, id := range lockOrder(st.slices) {
		h := st.slices[id]
		st.set.unheld[id] = h.Mask
		ids, steps, blocks = append(ids, h.ID), append(steps, id.Step), append(blocks, id.Block)
		masks = append(masks, h.Mask)
	}
	_, err := tx.Exec(ctx, insertStopped, st.run, st.generation, workqueue.CodeStopped, ids, steps, blocks,
		pgbits.Slice(masks))
	return pg.Wrap(err, "insert %d slices of stopped lanes", len(ids))
}
