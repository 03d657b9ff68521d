package settle

import (
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

// joint is one block of a run of several steps while outcomes are settled in it.
//
// Every settlement of a block first locks its row of step 0, the gate. So of two transactions that record the last
// two outcomes an item waits for, the second sees the first, and unlocks or completes: one of them does, exactly
// once. One statement locks the rows sorted by run, step and block, so gates come before all others and there is no
// deadlock. A rerun also locks the gates of the blocks that it changes.
type joint struct {
	graph *plane.Graph
	size  int
	news  map[workqueue.Step]*plane.Outcome
	at    []plane.Planes // of all steps, under the locks
	now   []plane.Planes
}

func (s *settlement) group(ctx context.Context, tx pgx.Tx) error {
	for _, id := range lockOrder(s.outcomes) {
		g, err := s.graphs.Of(ctx, tx, id.Run)
		if err != nil {
			return err
		}
		if g.Ordered {
			s.ordered[id.Run] = g
		}
		if g.Single() {
			s.alone = append(s.alone, id)
			s.final[id] = s.outcomes[id].All()
			continue
		}
		gate := plane.BlockID{Run: id.Run, Step: 0, Block: id.Block}
		j := s.joint[gate]
		if j == nil {
			j = &joint{graph: g, news: map[workqueue.Step]*plane.Outcome{}, at: make([]plane.Planes, len(g.Steps))}
			s.joint[gate] = j
		}
		j.news[id.Step] = s.outcomes[id]
	}
	return nil
}

func (s *settlement) locks() []plane.BlockID {
	rows := slices.AppendSeq(slices.Concat(s.alone, s.followed()), maps.Keys(s.unheld))
	for gate, j := range s.joint {
		row := func(step workqueue.Step) plane.BlockID {
			return plane.BlockID{Run: gate.Run, Step: step, Block: gate.Block}
		}
		rows = append(rows, gate)
		for step := range j.news {
			rows = append(rows, row(step))
			for _, after := range j.graph.After[step] {
				rows = append(rows, row(after))
			}
		}
	}
	slices.SortFunc(rows, plane.BlockID.Compare)
	return slices.Compact(rows)
}

func (s *settlement) rows() (rows []plane.BlockID) {
	for _, gate := range lockOrder(s.joint) {
		for step := range s.joint[gate].graph.Steps {
			rows = append(rows, plane.BlockID{Run: gate.Run, Step: workqueue.Step(step), Block: gate.Block})
		}
	}
	return rows
}

// readPlanes is a statement after the locks, so it sees what they waited for. Empty planes come as NULL.
const readPlanes = `
SELECT b.run_id, b.step, b.block, b.size, nullif(b.done, B'0'::bit(8192)), nullif(b.failed, B'0'::bit(8192)), b.skipped
FROM work_block b JOIN unnest($1::uuid[], $2::smallint[], $3::int[]) AS u (run_id, step, block)
    USING (run_id, step, block)`

func (s *settlement) scanPlanes(rows pgx.Rows) error {
	var id plane.BlockID
	var at plane.Planes
	read, size := 0, 0
	to := []any{&id.Run, &id.Step, &id.Block, &size, pgbits.OrEmpty(&at.Done), pgbits.OrEmpty(&at.Failed),
		pgbits.OrEmpty(&at.Skipped)}
	err := pg.Each(rows, to, func() {
		read++
		j := s.joint[plane.BlockID{Run: id.Run, Step: 0, Block: id.Block}]
		j.size, j.at[id.Step] = size, at
	})
	if want := len(s.rows()); err == nil && read != want {
		err = fmt.Errorf("%d blocks of %d: %w", read, want, workqueue.ErrFence)
	}
	return err
}

// unlock computes what the outcomes mean for the other steps of the joint blocks, and queues the write.
func (s *settlement) unlock(ctx context.Context, tx pgx.Tx, batch *pgx.Batch) error {
	var moved moves
	for _, gate := range lockOrder(s.joint) {
		j := s.joint[gate]
		changed := map[workqueue.Step]bitfield.Set{}
		for step, bits := range j.graph.Provisional(j.at, j.news) {
			set, err := changedParts(ctx, tx, j.graph, plane.BlockID{Run: gate.Run, Step: step, Block: gate.Block}, bits)
			if err != nil {
				return err
			}
			changed[step] = set
		}
		now, final := j.graph.Unlock(j.at, j.news, changed)
		j.now = now
		if !final.Empty() {
			s.final[gate] = final
		}
		for step := range now {
			s.unlocked = s.unlocked || !now[step].Ready.Empty()
			moved.add(plane.BlockID{Run: gate.Run, Step: workqueue.Step(step), Block: gate.Block}, &j.at[step], &now[step],
				j.news[workqueue.Step(step)])
		}
		if j.passes() && !slices.Contains(s.barriers, gate.Run) {
			s.barriers = append(s.barriers, gate.Run)
		}
	}
	moved.queue(batch)
	return nil
}

// passes reports whether these outcomes complete, in this block, all that some barrier waits for.
func (j *joint) passes() bool {
	all := bitfield.Full(j.size)
	for _, barrier := range j.graph.Barriers() {
		news := false
		ended := true
		for _, n := range j.graph.Before[barrier] {
			news = news || j.news[n] != nil
			ended = ended && j.now[n].Final() == all
		}
		if news && ended {
			return true
		}
	}
	return false
}

type moves struct {
	rows                                []plane.BlockID
	ready, done, failed, skipped, leave []bitfield.Set
	bytes                               []int64
}

// add records the difference between the planes of a block before and after, if any.
func (m *moves) add(id plane.BlockID, at, now *plane.Planes, news *plane.Outcome) {
	leave := at.Done.AndNot(now.Done).Or(at.Failed.AndNot(now.Failed)).Or(at.Skipped.AndNot(now.Skipped))
	done, failed, skipped := now.Done.AndNot(at.Done), now.Failed.AndNot(at.Failed), now.Skipped.AndNot(at.Skipped)
	if now.Ready.Empty() && leave.Empty() && done.Empty() && failed.Empty() && skipped.Empty() {
		return
	}
	bytes := int64(0)
	if news != nil {
		bytes = news.Bytes
	}
	m.rows, m.ready, m.leave = append(m.rows, id), append(m.ready, now.Ready), append(m.leave, leave)
	m.done, m.failed, m.skipped = append(m.done, done), append(m.failed, failed), append(m.skipped, skipped)
	m.bytes = append(m.bytes, bytes)
}

// moveBlocks writes changes of locked blocks. A moving bit must not be ready or held, and an arriving bit not
// already final: the condition prevents overwriting after a bug elsewhere, and the row count reveals it.
const moveBlocks = `
UPDATE work_block b
SET ready = b.ready | u.ready, done = (b.done & ~u.leave) | u.done, failed = (b.failed & ~u.leave) | u.failed,
    skipped = nullif((coalesce(b.skipped, B'0'::bit(8192)) & ~u.leave) | u.skipped, B'0'::bit(8192)),
    accepted = nullif(b.accepted & ~u.leave, B'0'::bit(8192)),
    result_bytes = u.bytes + CASE WHEN (b.done & u.leave) = B'0'::bit(8192) THEN b.result_bytes
        ELSE b.result_bytes * bit_count(b.done & ~u.leave) / bit_count(b.done) END
FROM unnest($1::uuid[], $2::smallint[], $3::int[], $4::bit(8192)[], $5::bit(8192)[], $6::bit(8192)[],
            $7::bit(8192)[], $8::bit(8192)[], $9::bigint[])
     AS u (run_id, step, block, ready, done, failed, skipped, leave, bytes)
WHERE b.run_id = u.run_id AND b.step = u.step AND b.block = u.block
  AND ((b.ready | coalesce(b.held, B'0'::bit(8192))) & (u.ready | u.done | u.failed | u.skipped | u.leave))
      = B'0'::bit(8192)
  AND ((` + plane.SettledBits + `) & ~u.leave
       & (u.ready | u.done | u.failed | u.skipped)) = B'0'::bit(8192)`

func (m *moves) queue(batch *pgx.Batch) {
	if len(m.rows) == 0 {
		return
	}
	args := append(plane.Columns(m.rows), pgbits.Slice(m.ready), pgbits.Slice(m.done), pgbits.Slice(m.failed),
		pgbits.Slice(m.skipped), pgbits.Slice(m.leave), m.bytes)
	batch.Queue(moveBlocks, args...).Exec(pg.CheckBatchRows(len(m.rows), "move blocks"))
}
