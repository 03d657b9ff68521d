package workqueue

import (
	"time"

	"github.com/jackc/pgx/v5"
)

// FailedRun is a completed run with failed items that nobody has run again. Runs and Items are those of all such runs.
type FailedRun struct {
	Run        RunID
	Name       string
	Plan       string
	Failed     int64
	FinishedAt time.Time
	Runs       int64
	Items      int64
}

// HeldRun is a run that is paused. Runs counts those held for the same reason.
type HeldRun struct {
	Run    RunID
	Name   string
	Plan   string
	Hold   Hold
	Detail string
	Since  time.Time
	By     string
	Runs   int64
}

// LateSeal is an open run that was not sealed in time.
type LateSeal struct {
	Run    RunID
	Name   string
	Plan   string
	SealBy time.Time
	Items  int64
}

// WaitingRun is a run that has items to be sent, none that are out, and has had none for long. Runs counts those whose
// start is as long ago and that have nothing out.
type WaitingRun struct {
	Run      RunID
	Name     string
	Plan     string
	Endpoint string
	Since    time.Time
}

const (
	// batchrun_failed finds them.
	healthFailed = `
SELECT id, coalesce(name, ''), plan, failed, finished_at, count(*) OVER (), (sum(failed) OVER ())::bigint
FROM batchrun
WHERE state = 'completed' AND failed > 0 AND finished_at > clock_timestamp() - $1::interval
ORDER BY id DESC LIMIT $2`

	// batchrun_active; a few of each reason.
	healthHeld = `
SELECT id, name, plan, hold, hold_detail, held_at, held_by, runs FROM (
    SELECT id, coalesce(name, '') AS name, plan, hold, hold_detail, held_at, held_by,
        count(*) OVER (PARTITION BY hold) AS runs, row_number() OVER (PARTITION BY hold ORDER BY held_at, id) AS n
    FROM batchrun WHERE state = 'running' AND hold IS NOT NULL) h
WHERE n <= $1 ORDER BY held_at, id`

	// batchrun_active.
	healthOverdue = `
SELECT id, coalesce(name, ''), plan, seal_by, items FROM batchrun
WHERE state = 'running' AND opened AND sealed_at IS NULL AND seal_by <= clock_timestamp()
ORDER BY seal_by, id LIMIT $1`

	// Which steps have ready items says work_block_ready, which have something out or due says work_slice_live. Of the
	// oldest candidates only, the last thing that happened is looked up: an operator's action in audit_log_run, and what
	// became of slices in work_slice_block, from its end and no further than some thousand back: blocks are cut in order.
	// A step whose endpoint is known to be down waits for that.
	healthWaiting = `
WITH live AS MATERIALIZED (
    SELECT run_id, step, bool_or(state <> 'scheduled') AS busy,
        bool_or(state = 'scheduled' AND not_before <= clock_timestamp()) AS due
    FROM work_slice WHERE state IN ('scheduled', 'claimed', 'sent') GROUP BY 1, 2),
ready AS MATERIALIZED (SELECT DISTINCT run_id, step FROM work_block WHERE has_ready),
idle AS MATERIALIZED (
    SELECT r.id, r.name, r.plan, st.step, st.endpoint, r.started_at
    FROM batchrun r
    JOIN run_step st ON st.run_id = r.id
    LEFT JOIN live l ON l.run_id = st.run_id AND l.step = st.step
    LEFT JOIN ready b ON b.run_id = st.run_id AND b.step = st.step
    WHERE r.state = 'running' AND r.hold IS NULL AND r.started_at < clock_timestamp() - $1::interval
        AND (NOT st.barrier OR st.barrier_passed) AND NOT coalesce(l.busy, false)
        AND (b.run_id IS NOT NULL OR coalesce(l.due, false))
        AND NOT EXISTS (SELECT FROM endpoint_pace p WHERE p.endpoint = st.endpoint AND p.breaker = 'open')
    ORDER BY r.started_at, r.id, st.step LIMIT $2)
SELECT id, coalesce(name, ''), plan, endpoint, since FROM (
    SELECT i.*, greatest(i.started_at,
        (SELECT max(a.at) FROM audit_log a WHERE a.run_id = i.id),
        (SELECT max(greatest(w.created_at, w.ended_at)) FROM (
            SELECT s.created_at, s.ended_at FROM work_slice s
            WHERE s.run_id = i.id AND s.step = i.step ORDER BY s.block DESC LIMIT 2000) w)) AS since
    FROM idle i) i
WHERE since < clock_timestamp() - $1::interval
ORDER BY since, id, step`
)

func (f *HealthFacts) queueRuns(b *pgx.Batch, l HealthLimits) {
	queueRows(b, &f.Failed, healthFailed, l.Failed, maxConcerns)
	queueRows(b, &f.Held, healthHeld, maxConcerns)
	queueRows(b, &f.Overdue, healthOverdue, maxConcerns)
	queueRows(b, &f.Waiting, healthWaiting, l.Waiting, maxConcerns)
}
