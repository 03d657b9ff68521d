package workqueue

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// laneRow is a line of a run under its lock, as found by one of its items.
type laneRow struct {
	item Ordinal
	lane int64
	head *Ordinal // the item that is worked on
	low  *Ordinal // the first that waits, when that is before the head or there is no head
	stop *Ordinal // the item that stopped the line

	next *follower // who waits first
}

// follower is an item that is held back, and the steps that hold it.
type follower struct {
	item  Ordinal
	steps []Step
}

const (
	// lockLanes locks the lines that items stand in, in the order of lanes as everywhere: after slices and before blocks.
	// Primary keys of work_order and work_lane. SELECT around an array, here and below, hides how long it is: of a run
	// that was loaded a moment ago the planner knows nothing, and for thousands of items it would go over all there are.
	lockLanes = `
SELECT o.ordinal, o.lane, l.head, l.low, l.stopped_by FROM work_order o JOIN work_lane l USING (run_id, lane)
WHERE o.run_id = $1 AND o.ordinal = ANY ((SELECT $2::int[])::int[])
ORDER BY o.lane, o.ordinal FOR NO KEY UPDATE OF l`

	// nextHeld finds the first item of each line $2, from ordinal $3 on, that is held back. It is a statement of its own
	// after the locks, so that it sees what they waited for: nobody else moves items of these lines into the held planes
	// or out of them, so that they can be read without a lock. work_order_lane, and the blocks' primary key.
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

func readLanes(ctx context.Context, tx pgx.Tx, run RunID, items []Ordinal) ([]*laneRow, error) {
	rows, err := tx.Query(ctx, lockLanes, run, items)
	if err != nil {
		return nil, fmt.Errorf("lock lines of run %s: %w", run, err)
	}
	lanes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*laneRow, error) {
		l := &laneRow{}
		return l, row.Scan(&l.item, &l.lane, &l.head, &l.low, &l.stop)
	})
	if err != nil {
		return nil, fmt.Errorf("lock lines of run %s: %w", run, err)
	}
	return lanes, nil
}

// findNext looks up who waits first in each line, from an ordinal on.
func findNext(ctx context.Context, tx pgx.Tx, run RunID, g *graph, lanes []*laneRow,
	from func(*laneRow) Ordinal,
) error {
	byLane := make(map[int64]*laneRow, len(lanes))
	ids, first := make([]int64, 0, len(lanes)), make([]Ordinal, 0, len(lanes))
	for _, l := range lanes {
		l.next = nil
		byLane[l.lane] = l
		ids, first = append(ids, l.lane), append(first, from(l))
	}
	rows, err := tx.Query(ctx, nextHeld, run, ids, first, g.numbers())
	if err != nil {
		return fmt.Errorf("look for who is next in the lines of run %s: %w", run, err)
	}
	var lane int64
	var next follower
	_, err = pgx.ForEachRow(rows, []any{&lane, &next.item, &next.steps}, func() error {
		byLane[lane].next = &follower{next.item, slices.Clone(next.steps)}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for who is next in the lines of run %s: %w", run, err)
	}
	return nil
}

// queueUp locks the lines of the items with outcomes, of runs that have lines, and finds out who is next in each. The
// blocks of these are locked with the others.
func (s *settlement) queueUp(ctx context.Context, tx pgx.Tx) error {
	if len(s.ordered) == 0 {
		return nil
	}
	items := map[RunID]map[Ordinal]bool{}
	for id, o := range s.outcomes {
		if s.ordered[id.run] == nil {
			continue
		}
		if items[id.run] == nil {
			items[id.run] = map[Ordinal]bool{}
		}
		all := o.all()
		for bit := range all.All() {
			items[id.run][id.block.Ordinal(bit)] = true
		}
	}
	inOrder := func(a, b RunID) int { return bytes.Compare(a[:], b[:]) }
	for _, run := range slices.SortedFunc(maps.Keys(items), inOrder) {
		lanes, err := readLanes(ctx, tx, run, sorted(items[run]))
		if err != nil {
			return err
		}
		// A line whose head is another item has its own successor to come.
		lanes = slices.DeleteFunc(lanes, func(l *laneRow) bool { return l.head == nil || *l.head != l.item })
		err = findNext(ctx, tx, run, s.ordered[run], lanes, func(l *laneRow) Ordinal {
			if l.low != nil {
				return *l.low
			}
			return l.item + 1
		})
		if err != nil {
			return err
		}
		s.lanes[run] = lanes
	}
	return nil
}

// followed are the rows of those who are next.
func (s *settlement) followed() (rows []blockID) {
	for run, lanes := range s.lanes {
		for _, l := range lanes {
			if l.next == nil {
				continue
			}
			block, _ := l.next.item.Block()
			for _, step := range l.next.steps {
				rows = append(rows, blockID{run, step, block})
			}
		}
	}
	return rows
}

// advance moves on the lines whose heads are final now: those who are next become ready, or, when the run is to stop a
// line at a failure, the line is marked.
func (s *settlement) advance(batch *pgx.Batch) {
	for run, lanes := range s.lanes {
		stops := s.ordered[run].stops
		var moved laneMoves
		for _, l := range lanes {
			block, bit := l.item.Block()
			gate := blockID{run, 0, block}
			if final := s.final[gate]; !final.Has(bit) {
				continue
			}
			if stops && s.hasFailed(gate, bit) {
				moved.halt(l)
				continue
			}
			moved.follow(l)
		}
		s.unlocked = s.unlocked || len(moved.released) > 0
		moved.queue(batch, run)
	}
}

// hasFailed reports whether an item that is final has failed.
func (s *settlement) hasFailed(gate blockID, bit int) bool {
	j := s.joint[gate]
	if j == nil {
		return s.outcomes[gate].failed.Has(bit)
	}
	for step := range j.now {
		if !j.graph.steps[step].optional && j.now[step].failed.Has(bit) {
			return true
		}
	}
	return false
}

// laneMoves is what becomes of lines of one run, as the statements take it.
type laneMoves struct {
	lanes             []int64
	heads, lows, stop []*Ordinal
	released          map[blockID]bitfield.Set
}

func (m *laneMoves) set(lane int64, head, low, stop *Ordinal) {
	m.lanes, m.heads = append(m.lanes, lane), append(m.heads, head)
	m.lows, m.stop = append(m.lows, low), append(m.stop, stop)
}

// follow makes the next item of a line its head, if there is one. Those that wait now stand behind it.
func (m *laneMoves) follow(l *laneRow) {
	if l.next == nil {
		m.set(l.lane, nil, nil, nil)
		return
	}
	m.set(l.lane, &l.next.item, nil, nil)
	m.release(l.next)
}

// halt ends a line: what waits in it is for [Store.EndStopped].
func (m *laneMoves) halt(l *laneRow) {
	var low *Ordinal
	if l.next != nil {
		low = &l.next.item
	}
	m.set(l.lane, nil, low, &l.item)
}

func (m *laneMoves) release(f *follower) {
	if m.released == nil {
		m.released = map[blockID]bitfield.Set{}
	}
	block, bit := f.item.Block()
	for _, step := range f.steps {
		id := blockID{step: step, block: block}
		bits := m.released[id]
		bits.Add(bit)
		m.released[id] = bits
	}
}

const (
	// releaseFollowers makes ready who was held back. The blocks are locked; that they were held stands again.
	releaseFollowers = `
UPDATE work_block b SET ready = b.ready | u.bits, held = nullif(b.held & ~u.bits, B'0'::bit(8192))
FROM unnest($2::smallint[], $3::int[], $4::bit(8192)[]) AS u (step, block, bits)
WHERE b.run_id = $1 AND b.step = u.step AND b.block = u.block AND (b.held & u.bits) = u.bits`

	// moveLanes writes where locked lines stand.
	moveLanes = `
UPDATE work_lane l SET head = u.head, low = u.low, stopped_by = u.stop, due = u.stop IS NOT NULL AND u.low IS NOT NULL
FROM unnest((SELECT $2::bigint[]), (SELECT $3::int[]), (SELECT $4::int[]), (SELECT $5::int[]))
     AS u (lane, head, low, stop)
WHERE l.run_id = $1 AND l.lane = u.lane`
)

// bits are the items that are released, block by block.
func (m *laneMoves) bits() (steps []Step, blocks []Block, bits []bitfield.Set) {
	for _, id := range lockOrder(m.released) {
		steps, blocks, bits = append(steps, id.step), append(blocks, id.block), append(bits, m.released[id])
	}
	return steps, blocks, bits
}

func (m *laneMoves) queue(batch *pgx.Batch, run RunID) {
	expect := func(what string, want int) func(pgconn.CommandTag) error {
		return func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() != int64(want) {
				return fmt.Errorf("move on the %s of run %s: %d rows of %d: %w", what, run, tag.RowsAffected(), want, errFence)
			}
			return nil
		}
	}
	if len(m.released) > 0 {
		steps, blocks, bits := m.bits()
		batch.Queue(releaseFollowers, run, steps, blocks, pgbits.Slice(bits)).Exec(expect("next items", len(blocks)))
	}
	if len(m.lanes) > 0 {
		batch.Queue(moveLanes, run, m.lanes, m.heads, m.lows, m.stop).Exec(expect("lines", len(m.lanes)))
	}
}
