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

const doctorPartKey = `
SELECT count(*) FROM pg_constraint c JOIN pg_index i ON i.indexrelid = c.conindid
WHERE c.conrelid = 'work_result'::regclass AND c.contype = 'p' AND i.indisvalid
    AND (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute a
        WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)) = '{generation,ordinal,run_id,step}'`

// Skips from run to run in work_result's primary key instead of scanning it. Runs being deleted do not count.
const doctorOrphans = `
WITH RECURSIVE runs AS (
    (SELECT run_id FROM work_result ORDER BY run_id LIMIT 1)
    UNION ALL
    SELECT (SELECT p.run_id FROM work_result p WHERE p.run_id > runs.run_id ORDER BY p.run_id LIMIT 1)
    FROM runs WHERE runs.run_id IS NOT NULL
)
SELECT run_id FROM runs WHERE run_id IS NOT NULL AND NOT EXISTS (SELECT FROM batchrun r WHERE r.id = runs.run_id)
    AND NOT EXISTS (SELECT FROM deleted_run g WHERE g.run_id = runs.run_id AND g.purged_at IS NULL)`

const doctorEvents = `
SELECT run_id, count(*) FROM run_event WHERE kind = 'completed' GROUP BY run_id, generation HAVING count(*) > 1`

// Slices cut before an approval, or between closing the gate and its next approval. Retries are made anyway, and wait.
const doctorGates = `
SELECT st.run_id, st.step, count(*) FROM run_step st JOIN work_slice s USING (run_id, step)
WHERE st.approval IS NOT NULL AND s.cause IN ('ready', 'probe')
  AND s.created_at > coalesce(st.gate_closed_at, '-infinity')
  AND (st.approved_at IS NULL OR s.created_at < st.approved_at)
GROUP BY st.run_id, st.step`

// The counts read work_queue and work_result by their primary keys, index-only where the visibility map permits.
const doctorRuns = `
SELECT r.id, r.state, r.generation, r.items, coalesce(r.done, 0), coalesce(r.failed, 0), r.accepted,
    coalesce(r.canary_state, ''),
    (SELECT count(*) FROM work_queue q WHERE q.run_id = r.id),
    coalesce((SELECT max(q.ordinal) FROM work_queue q WHERE q.run_id = r.id), -1),
    (SELECT count(*) FROM work_result p WHERE p.run_id = r.id),
    coalesce(t.state, ''), coalesce(t.open_groups, 0), r.opened,
    coalesce((SELECT max((a.detail->>'generation')::integer) FROM audit_log a
        WHERE a.run_id = r.id AND a.action IN ('rerun', 'reset', 'correct', 'resume')
            AND a.detail->>'generation' ~ '^[0-9]{1,9}$'), 0),
    (SELECT count(*) FROM run_event e WHERE e.run_id = r.id AND e.generation = r.generation AND e.kind = 'completed')
FROM batchrun r LEFT JOIN tracker_batch t ON t.id = r.id
WHERE r.state <> 'loading'
ORDER BY r.id`

const doctorBlocks = `
SELECT step, block, size, ready, done, failed, coalesce(held, B'0'::bit(8192)), coalesce(skipped, B'0'::bit(8192)),
    coalesce(accepted, B'0'::bit(8192))
FROM work_block WHERE run_id = $1
ORDER BY block, step`

const doctorGroups = `SELECT grp, size, pending FROM tracker_group WHERE batch_id = $1`

type doctorRun struct {
	id          workqueue.RunID
	state       string
	generation  workqueue.Generation
	items       int64
	done        int64
	failed      int64
	accepted    int64 // among the failed ones
	canary      string
	queued      int64 // rows of work_queue
	lastOrdinal int64
	parts       int64
	tracker     string
	openGroups  int64
	opened      bool
	audited     workqueue.Generation // of the last rerun in the audit log
	completions int64
	graph       *plane.Graph
}

// endless reports whether size is that of an unsealed open run's blocks: only full ones.
func (r *doctorRun) endless(size int64) bool {
	return r.opened && (r.tracker == "open" || r.tracker == "cancelled") && size == r.items-r.items%bitfield.Size
}

func (d *doctor) database(ctx context.Context) error {
	var keys int
	if err := d.tx.QueryRow(ctx, doctorPartKey).Scan(&keys); err != nil {
		return err
	}
	if keys == 0 {
		d.found(OnePart, place{}, 1, "work_result has no primary key over run, step, ordinal and generation")
	}
	orphans, err := pg.Collect(ctx, d.tx, pgx.RowTo[workqueue.RunID], doctorOrphans)
	if err != nil {
		return err
	}
	for i := range orphans {
		d.found(AskedFor, place{run: &orphans[i]}, 1, "parts of a run that does not exist")
	}
	var run workqueue.RunID
	var count int64
	err = pg.Each(pg.Rows(ctx, d.tx, doctorEvents), []any{&run, &count}, func() {
		id := run
		d.found(OneCompletion, place{run: &id}, count, "completion events of one generation")
	})
	if err != nil {
		return err
	}
	return d.gates(ctx)
}

func (d *doctor) gates(ctx context.Context) error {
	var run workqueue.RunID
	var step workqueue.Step
	var count int64
	return pg.Each(pg.Rows(ctx, d.tx, doctorGates), []any{&run, &step, &count}, func() {
		id, at := run, step
		d.found(Approved, place{run: &id, step: &at}, count, "requests of a step that no one had approved")
	})
}

func (d *doctor) runs(ctx context.Context) ([]doctorRun, error) {
	rows := pg.Rows(ctx, d.tx, doctorRuns)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (doctorRun, error) {
		var r doctorRun
		err := row.Scan(&r.id, &r.state, &r.generation, &r.items, &r.done, &r.failed, &r.accepted, &r.canary,
			&r.queued, &r.lastOrdinal, &r.parts, &r.tracker, &r.openGroups, &r.opened, &r.audited, &r.completions)
		return r, err
	})
}

type stepBlock struct {
	plane.Planes

	step  workqueue.Step
	block workqueue.Block
	size  int
	live  bitfield.Set // in live slices

	accepted bitfield.Set
}

type runTotals struct {
	parts        int64
	done, failed int64
	accepted     int64
	sizes        map[workqueue.Step]int64 // items
	groups       map[workqueue.Block]trackerGroup
	active       map[workqueue.Block]bitfield.Set // items in work, in a run with lanes
}

type trackerGroup struct {
	size    int
	pending bitfield.Set
}

func (d *doctor) run(ctx context.Context, r *doctorRun) error {
	d.report.Runs++
	d.report.Items += r.items
	var known plane.GraphCache // not the store's: the database itself is checked
	var err error
	if r.graph, err = known.Of(ctx, d.tx, r.id); err != nil {
		return err
	}
	blocks, err := d.blocks(ctx, r)
	if err != nil {
		return err
	}
	totals := &runTotals{sizes: map[workqueue.Step]int64{}, active: map[workqueue.Block]bitfield.Set{}}
	if totals.groups, err = d.groups(ctx, r); err != nil {
		return err
	}
	for start := 0; start < len(blocks); {
		end := start + 1
		for end < len(blocks) && blocks[end].block == blocks[start].block {
			end++
		}
		if err := d.block(ctx, r, blocks[start:end], totals); err != nil {
			return err
		}
		start = end
	}
	d.steps(r, totals)
	d.totals(r, totals)
	return d.lanes(ctx, r, totals.active)
}

func (d *doctor) blocks(ctx context.Context, r *doctorRun) ([]stepBlock, error) {
	rows := pg.Rows(ctx, d.tx, doctorBlocks, r.id)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (stepBlock, error) {
		var b stepBlock
		err := row.Scan(&b.step, &b.block, &b.size, pgbits.Into(&b.Ready), pgbits.Into(&b.Done), pgbits.Into(&b.Failed),
			pgbits.Into(&b.Held), pgbits.Into(&b.Skipped), pgbits.Into(&b.accepted))
		return b, err
	})
}

func (d *doctor) groups(ctx context.Context, r *doctorRun) (map[workqueue.Block]trackerGroup, error) {
	groups := map[workqueue.Block]trackerGroup{}
	var block workqueue.Block
	var g trackerGroup
	err := pg.Each(pg.Rows(ctx, d.tx, doctorGroups, r.id), []any{&block, &g.size, pgbits.Into(&g.pending)}, func() {
		groups[block] = g
	})
	return groups, err
}

func (d *doctor) steps(r *doctorRun, totals *runTotals) {
	for i := range r.graph.Steps {
		step := workqueue.Step(i)
		at := place{run: &r.id, step: &step}
		if totals.sizes[step] != r.items && !r.endless(totals.sizes[step]) {
			d.found(ItemsAddUp, at, totals.sizes[step]-r.items, "the sizes of the blocks do not add up to the run's items")
		}
	}
}

func (d *doctor) totals(r *doctorRun, t *runTotals) {
	at := place{run: &r.id}
	if r.queued != r.items || r.lastOrdinal != r.items-1 {
		d.found(ItemsAddUp, at, r.queued-r.items, "work_queue does not hold ordinals 0 to items-1")
	}
	if r.parts != t.parts {
		d.found(AskedFor, at, r.parts-t.parts, "parts outside every block of the run")
	}
	var pending, open int64
	for _, g := range t.groups {
		pending += int64(g.pending.Count())
		if !g.pending.Empty() {
			open++
		}
	}
	if open != r.openGroups {
		d.found(TruthsAgree, at, r.openGroups-open, "the tracker's open_groups differs from the groups with pending items")
	}
	completed := r.state == "completed"
	if completed != (r.tracker == "completed") {
		d.found(TruthsAgree, at, 1, "the run is "+r.state+" and its tracker is "+r.tracker)
	}
	if r.state != "cancelled" && r.tracker != "open" && completed != (pending == 0) {
		d.found(TruthsAgree, at, pending, "pending items in the tracker of a run that is "+r.state)
	}
	if completed {
		d.completed(r, t)
	}
}

func (d *doctor) completed(r *doctorRun, t *runTotals) {
	at := place{run: &r.id}
	if r.done != t.done || r.failed != t.failed {
		d.found(TruthsAgree, at, r.done-t.done+r.failed-t.failed, "the run's counts differ from its bits")
	}
	if r.accepted != t.accepted {
		d.found(TruthsAgree, at, r.accepted-t.accepted, "the run's count of accepted failures differs from its bits")
	}
	if r.completions == 0 {
		d.found(OneCompletion, at, 0, "no completion event of a generation that is completed")
	}
}

// OneOfALane says that at most one item of a lane is in work, and one is if any waits.
const OneOfALane Invariant = "O1"

// doctorLanes reads the lanes of a run: each head with its actual lane. Primary keys of both.
const doctorLanes = `
SELECT l.head, o.lane IS NOT DISTINCT FROM l.lane, l.due
FROM work_lane l LEFT JOIN work_order o ON o.run_id = l.run_id AND o.ordinal = l.head
WHERE l.run_id = $1`

// waitingWithout is waiting items in lanes without a head that are not due to be ended.
const waitingWithout = `
SELECT o.ordinal FROM work_block b
CROSS JOIN LATERAL generate_series(b.block * 8192, b.block * 8192 + b.size - 1) AS i (ordinal)
JOIN work_order o ON o.run_id = b.run_id AND o.ordinal = i.ordinal
LEFT JOIN work_lane l ON l.run_id = o.run_id AND l.lane = o.lane
WHERE b.run_id = $1 AND b.held IS NOT NULL AND get_bit(b.held, i.ordinal % 8192) = 1
  AND (l.lane IS NULL OR l.head IS NULL AND NOT l.due)
ORDER BY 1 LIMIT 1000`

// lanes checks a run's lanes against what is in progress: items neither final nor held are heads, one per lane.
func (d *doctor) lanes(ctx context.Context, r *doctorRun, active map[workqueue.Block]bitfield.Set) error {
	if !r.graph.Ordered || r.state == "cancelled" {
		return nil
	}
	rows := pg.Rows(ctx, d.tx, doctorLanes, r.id)
	heads := map[workqueue.Block]bitfield.Set{}
	var stray, idle int64
	var head *workqueue.Ordinal
	var own, due bool
	_, err := pgx.ForEachRow(rows, []any{&head, &own, &due}, func() error {
		if head == nil {
			return nil
		}
		block, bit := head.Block()
		at, known := active[block]
		if !own {
			stray++
		}
		if !known || !at.Has(bit) {
			idle++
		}
		mask := heads[block]
		mask.Add(bit)
		heads[block] = mask
		return nil
	})
	if err != nil {
		return err
	}
	if stray > 0 {
		d.found(OneOfALane, place{run: &r.id}, stray, "heads of lanes that are in another lane")
	}
	if idle > 0 {
		d.found(OneOfALane, place{run: &r.id}, idle, "heads of lanes that are final, or held back themselves")
	}
	for block, mask := range active {
		d.bits(OneOfALane, place{run: &r.id, block: &block}, mask.AndNot(heads[block]),
			"worked on, and not the heads of their lanes")
	}
	lost, err := pg.Collect(ctx, d.tx, pgx.RowTo[workqueue.Ordinal], waitingWithout, r.id)
	if err == nil && len(lost) > 0 {
		d.found(OneOfALane, place{run: &r.id}, int64(len(lost)), "waiting in lanes in which nothing is worked on", lost...)
	}
	return err
}

// underWay is the items of a block that are neither final nor held at any step.
func underWay(steps []stepBlock, settled bitfield.Set) bitfield.Set {
	active := bitfield.Full(steps[0].size).AndNot(settled)
	var begun bitfield.Set
	for i := range steps {
		active = active.AndNot(steps[i].Held)
		begun = begun.Or(steps[i].Ready).Or(steps[i].live)
	}
	return active.Or(begun)
}
