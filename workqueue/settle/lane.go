package settle

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// LaneRow is a locked lane of a run, found by one of its items.
type LaneRow struct {
	Item workqueue.Ordinal
	Lane int64
	Head *workqueue.Ordinal // the item in work
	Low  *workqueue.Ordinal // the first waiting item, if it is before the head or there is no head
	Stop *workqueue.Ordinal // the item that stopped the lane

	next *Follower // the first waiting item
}

// Follower is a held item, and the steps that hold it.
type Follower struct {
	Item  workqueue.Ordinal
	Steps []workqueue.Step
}

const (
	// lockLanes locks the lanes of items by lane, after slices and before blocks as everywhere. It uses the primary
	// keys of work_order and work_lane. Here and below, SELECT around an array hides its length: for a run loaded a
	// moment ago the planner has no statistics, and for thousands of items would scan all there are.
	lockLanes = `
SELECT o.ordinal, o.lane, l.head, l.low, l.stopped_by FROM work_order o JOIN work_lane l USING (run_id, lane)
WHERE o.run_id = $1 AND o.ordinal = ANY ((SELECT $2::int[])::int[])
ORDER BY o.lane, o.ordinal FOR NO KEY UPDATE OF l`

	// nextHeld finds the first held item of each lane in $2 from ordinal $3. It is a statement after the locks, so
	// it sees what they waited for. Only a holder of these locks moves items of the lanes into or out of the held
	// planes, so they can be read without a lock. By work_order_lane and the blocks' primary key.
	nextHeld = `
SELECT u.lane, n.ordinal, n.steps
FROM unnest((SELECT $2::bigint[]), (SELECT $3::int[])) AS u (lane, first) CROSS JOIN LATERAL (
    SELECT o.ordinal, at.steps FROM work_order o CROSS JOIN LATERAL (
        SELECT array_agg(b.step) AS steps FROM work_block b
        WHERE b.run_id = $1 AND b.step = ANY ($4::smallint[]) AND b.block = o.ordinal / 8192
            AND get_bit(b.held, o.ordinal % 8192) = 1) at
    WHERE o.run_id = $1 AND o.lane = u.lane AND o.ordinal >= u.first AND at.steps IS NOT NULL
    ORDER BY o.lane, o.ordinal LIMIT 1) n`
)

// ReadLanes locks and reads the lanes of items.
func ReadLanes(ctx context.Context, tx pgx.Tx, run workqueue.RunID, items []workqueue.Ordinal) ([]*LaneRow, error) {
	lanes, err := pg.Collect(ctx, tx, pgx.RowToAddrOfStructByPos[LaneRow], lockLanes, run, items)
	return lanes, pg.Wrap(err, "lock lanes of run %s", run)
}

// FindNext looks up the first waiting item of each lane, starting with an ordinal.
func FindNext(ctx context.Context, tx pgx.Tx, run workqueue.RunID, g *plane.Graph, lanes []*LaneRow,
	from func(*LaneRow) workqueue.Ordinal,
) error {
	byLane := make(map[int64]*LaneRow, len(lanes))
	ids, first := make([]int64, 0, len(lanes)), make([]workqueue.Ordinal, 0, len(lanes))
	for _, l := range lanes {
		l.next = nil
		byLane[l.Lane] = l
		ids, first = append(ids, l.Lane), append(first, from(l))
	}
	var lane int64
	var next Follower
	err := pg.Each(pg.Rows(ctx, tx, nextHeld, run, ids, first, g.Numbers()),
		[]any{&lane, &next.Item, &next.Steps}, func() {
			byLane[lane].next = &Follower{next.Item, slices.Clone(next.Steps)}
		})
	return pg.Wrap(err, "find who is next in the lanes of run %s", run)
}

// queueUp locks the lanes of items with outcomes and finds the next item of each.
func (s *settlement) queueUp(ctx context.Context, tx pgx.Tx) error {
	if len(s.ordered) == 0 {
		return nil
	}
	items := map[workqueue.RunID]map[workqueue.Ordinal]bool{}
	for id, o := range s.outcomes {
		if s.ordered[id.Run] == nil {
			continue
		}
		if items[id.Run] == nil {
			items[id.Run] = map[workqueue.Ordinal]bool{}
		}
		all := o.All()
		for bit := range all.All() {
			items[id.Run][id.Block.Ordinal(bit)] = true
		}
	}
	inOrder := func(a, b workqueue.RunID) int { return bytes.Compare(a[:], b[:]) }
	for _, run := range slices.SortedFunc(maps.Keys(items), inOrder) {
		lanes, err := ReadLanes(ctx, tx, run, plane.Sorted(items[run]))
		if err != nil {
			return err
		}
		// A lane with another head has its own successor to come.
		lanes = slices.DeleteFunc(lanes, func(l *LaneRow) bool { return l.Head == nil || *l.Head != l.Item })
		err = FindNext(ctx, tx, run, s.ordered[run], lanes, func(l *LaneRow) workqueue.Ordinal {
			if l.Low != nil {
				return *l.Low
			}
			return l.Item + 1
		})
		if err != nil {
			return err
		}
		s.lanes[run] = lanes
	}
	return nil
}

func (s *settlement) followed() (rows []plane.BlockID) {
	for run, lanes := range s.lanes {
		for _, l := range lanes {
			if l.next == nil {
				continue
			}
			block, _ := l.next.Item.Block()
			for _, step := range l.next.Steps {
				rows = append(rows, plane.BlockID{Run: run, Step: step, Block: block})
			}
		}
	}
	return rows
}

// advance moves lanes whose heads are final: the next item becomes ready, or a failure stops the lane.
func (s *settlement) advance(batch *pgx.Batch) {
	for run, lanes := range s.lanes {
		stops := s.ordered[run].Stops
		var moved LaneMoves
		for _, l := range lanes {
			block, bit := l.Item.Block()
			gate := plane.BlockID{Run: run, Step: 0, Block: block}
			if final := s.final[gate]; !final.Has(bit) {
				continue
			}
			if stops && s.hasFailed(gate, bit) {
				var low *workqueue.Ordinal
				if l.next != nil {
					low = &l.next.Item
				}
				moved.Set(l.Lane, nil, low, &l.Item) // [Store.EndStopped] ends its waiting items
				continue
			}
			moved.Follow(l)
		}
		s.unlocked = s.unlocked || len(moved.Released) > 0
		moved.queue(batch, run)
	}
}

func (s *settlement) hasFailed(gate plane.BlockID, bit int) bool {
	j := s.joint[gate]
	if j == nil {
		return s.outcomes[gate].Failed.Has(bit)
	}
	for step := range j.now {
		if !j.graph.Steps[step].Optional && j.now[step].Failed.Has(bit) {
			return true
		}
	}
	return false
}

// LaneMoves is changes of one run's lanes, as columns.
type LaneMoves struct {
	lanes             []int64
	heads, lows, stop []*workqueue.Ordinal
	Released          map[plane.BlockID]bitfield.Set
}

// Set moves a lane.
func (m *LaneMoves) Set(lane int64, head, low, stop *workqueue.Ordinal) {
	m.lanes, m.heads = append(m.lanes, lane), append(m.heads, head)
	m.lows, m.stop = append(m.lows, low), append(m.stop, stop)
}

// Follow makes the next item of a lane its head, if there is one.
func (m *LaneMoves) Follow(l *LaneRow) {
	if l.next == nil {
		m.Set(l.Lane, nil, nil, nil)
		return
	}
	m.Set(l.Lane, &l.next.Item, nil, nil)
	m.Release(l.next)
}

// Release makes an item ready.
func (m *LaneMoves) Release(f *Follower) {
	if m.Released == nil {
		m.Released = map[plane.BlockID]bitfield.Set{}
	}
	block, bit := f.Item.Block()
	for _, step := range f.Steps {
		id := plane.BlockID{Step: step, Block: block}
		bits := m.Released[id]
		bits.Add(bit)
		m.Released[id] = bits
	}
}

const (
	// releaseFollowers makes held items ready. The blocks are locked; the condition repeats the check.
	releaseFollowers = `
UPDATE work_block b SET ready = b.ready | u.bits, held = nullif(b.held & ~u.bits, B'0'::bit(8192))
FROM unnest($2::smallint[], $3::int[], $4::bit(8192)[]) AS u (step, block, bits)
WHERE b.run_id = $1 AND b.step = u.step AND b.block = u.block AND (b.held & u.bits) = u.bits`

	// moveLanes writes locked lanes.
	moveLanes = `
UPDATE work_lane l SET head = u.head, low = u.low, stopped_by = u.stop, due = u.stop IS NOT NULL AND u.low IS NOT NULL
FROM unnest((SELECT $2::bigint[]), (SELECT $3::int[]), (SELECT $4::int[]), (SELECT $5::int[]))
     AS u (lane, head, low, stop)
WHERE l.run_id = $1 AND l.lane = u.lane`
)

// Bits returns the released items by block.
func (m *LaneMoves) Bits() (steps []workqueue.Step, blocks []workqueue.Block, bits []bitfield.Set) {
	for _, id := range lockOrder(m.Released) {
		steps, blocks, bits = append(steps, id.Step), append(blocks, id.Block), append(bits, m.Released[id])
	}
	return steps, blocks, bits
}

func (m *LaneMoves) queue(batch *pgx.Batch, run workqueue.RunID) {
	if len(m.Released) > 0 {
		steps, blocks, bits := m.Bits()
		batch.Queue(releaseFollowers, run, steps, blocks, pgbits.Slice(bits)).
			Exec(pg.CheckBatchRows(len(blocks), fmt.Sprintf("move on the next items of run %s", run)))
	}
	if len(m.lanes) > 0 {
		batch.Queue(moveLanes, run, m.lanes, m.heads, m.lows, m.stop).
			Exec(pg.CheckBatchRows(len(m.lanes), fmt.Sprintf("move on the lanes of run %s", run)))
	}
}

// Send locks the blocks of the released items and writes the moves.
func (m *LaneMoves) Send(ctx context.Context, tx pgx.Tx, run workqueue.RunID) error {
	batch := &pgx.Batch{}
	var rows []plane.BlockID
	for _, id := range lockOrder(m.Released) {
		rows = append(rows, plane.BlockID{Run: run, Step: id.Step, Block: id.Block})
	}
	batch.Queue(lockBlocks, plane.Columns(rows)...)
	m.queue(batch, run)
	err := tx.SendBatch(ctx, batch).Close()
	return pg.Wrap(err, "move on lanes of run %s", run)
}

// Again continues a lane whose head was reset, if it has one.
func (m *LaneMoves) Again(l *LaneRow) {
	if l.Head == nil {
		m.Follow(l)
		return
	}
	if l.next != nil && l.next.Item == *l.Head {
		m.Release(l.next)
	}
	if *l.Low >= *l.Head {
		l.Low = nil
	}
	m.Set(l.Lane, l.Head, l.Low, nil)
}
