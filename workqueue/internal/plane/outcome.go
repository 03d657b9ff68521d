package plane

import (
	"slices"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	// NoBits is an empty plane in SQL.
	NoBits = `B'0'::bit(8192)`

	// SettledBits is the items of a block b that are final at its step. Each operator on a plane costs a microsecond.
	SettledBits = `CASE WHEN b.skipped IS NULL THEN b.done | b.failed ELSE b.done | b.failed | b.skipped END`

	// SettledCount is how many those are: the planes are disjoint.
	SettledCount = `(bit_count(b.done) + bit_count(b.failed) + coalesce(bit_count(b.skipped), 0))`

	// OutcomePlanes is, for each block of a run r, the items final at every step, the failed ones, and their numbers. An
	// item has failed as soon as a required step failed it, even if other steps are in progress; it is done when it is
	// settled and has not failed, and accepted when all its failures are. It is a range of work_block's primary key.
	// Planes of finished steps and planes without failures are only counted.
	OutcomePlanes = `
    SELECT p.block, p.size, coalesce(p.open, ~` + NoBits + ` << (8192 - p.size)) AS settled,
        coalesce(p.failed, ` + NoBits + `) AS failed,
        coalesce(bit_count(p.open), p.size) AS settled_items, coalesce(bit_count(p.failed), 0) AS failed_items,
        coalesce(bit_count(p.open), p.size)
            - coalesce(bit_count(CASE WHEN p.open IS NULL THEN p.failed ELSE p.open & p.failed END), 0) AS done_items,
        coalesce(bit_count(CASE WHEN p.accepted IS NOT NULL THEN p.failed & ~coalesce(p.rest, ` + NoBits + `) END), 0)
            AS accepted_items, p.parts, p.all_parts
    FROM (SELECT a.*, coalesce(a.rest | a.accepted, a.rest, a.accepted) AS failed FROM (
        SELECT b.block, max(b.size) AS size,
            bit_and(` + SettledBits + `) FILTER (WHERE ` + SettledCount + ` < b.size) AS open,
            bit_or(CASE WHEN b.accepted IS NULL THEN b.failed ELSE b.failed & ~b.accepted END)
                FILTER (WHERE NOT s.optional AND b.failed <> ` + NoBits + `) AS rest,
            bit_or(b.accepted) FILTER (WHERE NOT s.optional) AS accepted,
            sum(` + SettledCount + `) AS parts, sum(b.size) AS all_parts
        FROM work_block b JOIN run_step s USING (run_id, step) WHERE b.run_id = r.id GROUP BY b.block) a) p`

	// OutcomeOfRun counts the items of a run r by outcome; accepted ones are among the failed, and settled ones are final
	// at every step.
	OutcomeOfRun = `
SELECT coalesce(sum(o.done_items), 0)::bigint AS done, coalesce(sum(o.failed_items), 0)::bigint AS failed,
    coalesce(sum(o.accepted_items), 0)::bigint AS accepted, coalesce(sum(o.settled_items), 0)::bigint AS settled,
    sum(o.parts) AS parts, sum(o.all_parts) AS all_parts
FROM (` + OutcomePlanes + `) o`
)

// ResultSteps returns the steps whose parts are the results of a run: those that no other step needs.
func ResultSteps(steps []workqueue.Step, needs [][]workqueue.Step) []workqueue.Step {
	var results []workqueue.Step
	for _, step := range steps {
		needed := slices.ContainsFunc(needs, func(of []workqueue.Step) bool { return slices.Contains(of, step) })
		if !needed {
			results = append(results, step)
		}
	}
	return results
}

// OutcomeSteps is the steps of a run, as needed to determine outcomes.
type OutcomeSteps struct {
	All      []workqueue.Step
	Names    []string
	Optional []bool
	Results  []workqueue.Step // whose parts are the results
}

// ReadStepsOfRun reads the columns for OutcomeSteps.
const ReadStepsOfRun = `SELECT step, name, needs, optional FROM run_step WHERE run_id = $1 ORDER BY step`

func (o *OutcomeSteps) isOptional(step workqueue.Step) bool {
	i := slices.Index(o.All, step)
	return i >= 0 && o.Optional[i]
}

// StepPlanes is the outcomes of one block of a step, as read.
type StepPlanes struct {
	step                  workqueue.Step
	size                  int
	done, failed, skipped bitfield.Set
}

// Into returns the scan targets of a row.
func (p *StepPlanes) Into() []any {
	return []any{&p.step, &p.size, pgbits.Into(&p.done), pgbits.Into(&p.failed), pgbits.Into(&p.skipped)}
}

// BlockOutcomes is the outcomes of a block's items over all steps.
type BlockOutcomes struct {
	Steps   int
	settled bitfield.Set // final at every step
	failed  []failedIn   // in step order
}

type failedIn struct {
	step  workqueue.Step
	items bitfield.Set
}

// Add adds the next step.
func (b *BlockOutcomes) Add(of *OutcomeSteps, p *StepPlanes) {
	settled := p.done.Or(p.failed).Or(p.skipped)
	if b.Steps == 0 {
		b.settled = settled
	} else {
		b.settled = b.settled.And(settled)
	}
	b.Steps++
	if !p.failed.Empty() && !of.isOptional(p.step) {
		b.failed = append(b.failed, failedIn{p.step, p.failed})
	}
}

// Of returns an item's outcome, and the first step that failed it.
func (b *BlockOutcomes) Of(bit int) (outcome workqueue.Outcome, failed workqueue.Step) {
	for i := range b.failed {
		if b.failed[i].items.Has(bit) {
			return workqueue.OutcomeFailed, b.failed[i].step
		}
	}
	if b.settled.Has(bit) {
		return workqueue.OutcomeDone, 0
	}
	return workqueue.OutcomeMissing, 0
}

// The following is planned once ([PlanOnce]), perhaps on nearly empty tables. So each statement leaves the planner
// no choice that would later be slow. These conditions are, word for word, those of the indexes work_block_turn,
// work_slice_waiting and work_slice_busy, which no other index has; and runs and steps are looked up one at a time.
const (
	ReadyThere    = `(b.has_ready AND b.endpoint IS NOT NULL) IS TRUE`
	WaitsThere    = `(s.state = 'scheduled') IS TRUE`
	SliceInFlight = `(s.state IN ('claimed', 'sent')) IS TRUE`

	// RunAndStep is the run r and the step st of a t.
	RunAndStep = `LATERAL (SELECT * FROM batchrun o WHERE o.id = t.run_id OFFSET 0) r
         CROSS JOIN LATERAL (SELECT * FROM run_step o WHERE o.run_id = t.run_id AND o.step = t.step OFFSET 0) st`
)

// HasReady is a condition on a run_step st: it has claimable items. No plan collects all index entries.
const HasReady = `
    coalesce((SELECT true FROM work_block b WHERE b.run_id = st.run_id AND b.step = st.step AND b.has_ready
              LIMIT 1), false)`

// HasDue is a condition like [HasReady]: a slice is due.
const HasDue = `
    coalesce((SELECT true FROM work_slice s WHERE s.run_id = st.run_id AND s.step = st.step AND s.state = 'scheduled'
              AND s.not_before <= (SELECT tranche_now()) LIMIT 1), false)`

// ReadyAuto is the steps with ready items at an endpoint e and an automatic limit, the most urgent first, then the
// oldest. It finds one at a time by the index work_block_turn, only as many as requested.
const ReadyAuto = readyHead + `b.auto` + readyNext + `b.auto` + readyTail

// ReadyFixed is [ReadyAuto] for steps with a fixed limit.
const ReadyFixed = readyHead + `NOT b.auto` + readyNext + `NOT b.auto` + readyTail

const readyHead = `(
    WITH RECURSIVE turn AS (
        (SELECT b.turn, b.run_id, b.step FROM work_block b WHERE ` + ReadyThere + ` AND b.endpoint = e.endpoint AND `

const readyNext = `
         ORDER BY b.turn, b.run_id, b.step LIMIT 1)
        UNION ALL
        SELECT n.turn, n.run_id, n.step FROM turn t CROSS JOIN LATERAL (
            SELECT b.turn, b.run_id, b.step FROM work_block b WHERE ` + ReadyThere + ` AND b.endpoint = e.endpoint
              AND (b.turn, b.run_id, b.step) > (t.turn, t.run_id, t.step) AND `

const readyTail = `
            ORDER BY b.turn, b.run_id, b.step LIMIT 1) n)
    SELECT run_id, step FROM turn)`

// DueAt is the steps with due slices at an endpoint e, by work_slice_waiting; while it is down, any waiting slice.
const DueAt = `(
    SELECT run_id, step FROM (
        SELECT s.run_id, s.step FROM work_slice s
        WHERE ` + WaitsThere + ` AND s.endpoint = e.endpoint
          AND (e.down OR s.not_before <= (SELECT tranche_now()))
        ORDER BY s.not_before, s.run_id, s.step OFFSET 0) s
    GROUP BY run_id, step)`

// BusyAt counts what is in flight at an endpoint at.endpoint, for its budget: slices, also of its steps at its canary,
// and flushes of collectors.
const BusyAt = `(SELECT count(*) FROM work_slice s WHERE s.endpoint = at.endpoint AND ` + SliceInFlight + `)
           + (SELECT count(*) FROM endpoint_setting v CROSS JOIN LATERAL (
                  SELECT s.run_id, s.step FROM work_slice s
                  WHERE s.endpoint = v.canary AND ` + SliceInFlight + ` OFFSET 0) s
              WHERE v.endpoint = at.endpoint AND v.canary_share < 100 AND at.endpoint = (
                  SELECT o.endpoint FROM run_step o WHERE o.run_id = s.run_id AND o.step = s.step))
           + (SELECT count(*) FROM collector_key k JOIN collector o ON o.id = k.collector
              WHERE o.endpoint = at.endpoint AND k.flush IS NOT NULL)`

// StepSlices is the slices in flight of a step t at the targets of its endpoint e: itself, and its canary.
const StepSlices = `unnest(e.targets) g CROSS JOIN LATERAL (
    SELECT FROM work_slice s WHERE s.endpoint = g AND s.run_id = t.run_id AND s.step = t.step AND ` + SliceInFlight + `
    OFFSET 0) s`

// BusySteps is the steps of an endpoint e with slices in flight there or at another of its targets.
const BusySteps = `(
    SELECT s.run_id, s.step FROM (
        SELECT DISTINCT s.run_id, s.step FROM unnest(e.targets) g CROSS JOIN LATERAL (
            SELECT s.run_id, s.step FROM work_slice s WHERE s.endpoint = g AND ` + SliceInFlight + ` OFFSET 0) s) s
    WHERE (SELECT o.endpoint FROM run_step o WHERE o.run_id = s.run_id AND o.step = s.step) = e.endpoint)`

// Unheld is a condition on a batchrun r and its run_step st: only limits keep nodes from its work.
const Unheld = `
r.state = 'running' AND r.hold IS NULL AND (NOT st.barrier OR st.barrier_passed)`

// PlanOnce applies to the transaction, or batch. Its statements are planned once, since planning takes longer than
// running them, and step through indexes, regardless of table sizes: they end early.
const PlanOnce = `
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)`
