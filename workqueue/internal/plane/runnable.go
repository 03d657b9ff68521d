package plane

// What follows is planned once ([PlanOnce]), maybe when hardly anything is there. So each statement leaves the planner
// no choice that would be slow later: these conditions are, word for word, those of the indexes work_block_turn,
// work_slice_waiting and work_slice_busy, and no other index has them; and runs and steps are looked up one by one.
const (
	ReadyThere = `(b.has_ready AND b.endpoint IS NOT NULL) IS TRUE`
	WaitsThere = `(s.state = 'scheduled') IS TRUE`
	OutThere   = `(s.state IN ('claimed', 'sent')) IS TRUE`

	// RunAndStep are the run r and the step st of a t.
	RunAndStep = `LATERAL (SELECT * FROM batchrun o WHERE o.id = t.run_id OFFSET 0) r
         CROSS JOIN LATERAL (SELECT * FROM run_step o WHERE o.run_id = t.run_id AND o.step = t.step OFFSET 0) st`
)

// HasReady is a condition on a run_step st: there is something ready to claim of it. It is a look into a partial index,
// written so that no plan gathers all there is instead.
const HasReady = `
    coalesce((SELECT true FROM work_block b WHERE b.run_id = st.run_id AND b.step = st.step AND b.has_ready
              LIMIT 1), false)`

// HasDue is a condition as [HasReady] is: a slice is due.
const HasDue = `
    coalesce((SELECT true FROM work_slice s WHERE s.run_id = st.run_id AND s.step = st.step AND s.state = 'scheduled'
              AND s.not_before <= (SELECT tranche_now()) LIMIT 1), false)`

// ReadyAuto are the steps that have something ready at an endpoint e, those that leave their limit in flight to the
// pace ; the most urgent first, then the oldest: one after the other by the
// index work_block_turn, only as many as are asked for, however many blocks each has.
const ReadyAuto = readyHead + `b.auto` + readyNext + `b.auto` + readyTail

// ReadyFixed are the steps as in [ReadyAuto] whose limit in flight is fixed.
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

// DueAt are the steps of which something is due at an endpoint e, by the index work_slice_waiting; while the endpoint
// is down whatever waits there will do for a probe.
const DueAt = `(
    SELECT run_id, step FROM (
        SELECT s.run_id, s.step FROM work_slice s
        WHERE ` + WaitsThere + ` AND s.endpoint = e.endpoint
          AND (e.down OR s.not_before <= (SELECT tranche_now()))
        ORDER BY s.not_before, s.run_id, s.step OFFSET 0) s
    GROUP BY run_id, step)`

// OutAt are the steps that have slices out at an endpoint e.
const OutAt = `(
    SELECT DISTINCT s.run_id, s.step FROM work_slice s
    WHERE s.endpoint = e.endpoint AND ` + OutThere + `)`

// Unheld is a condition on a batchrun r and its run_step st: nothing but limits keeps nodes from its work.
const Unheld = `
r.state = 'running' AND r.hold IS NULL AND (NOT st.barrier OR st.barrier_passed)`

// PlanOnce holds for the transaction, which a batch is too: these statements are planned once, since planning takes
// longer than they do, and so that they go from row to row by indexes, whatever the sizes of the tables were at that
// time: they end when they have found enough.
const PlanOnce = `
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)`
