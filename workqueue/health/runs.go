package health

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// FailedRun is a completed run with failed items that nobody has run again, or accepted. Failed and Items leave out
// those that are accepted; Runs and Items are those of all such runs.
type FailedRun struct {
	Run        workqueue.RunID
	Name       string
	Plan       string
	Failed     int64
	FinishedAt time.Time
	Runs       int64
	Items      int64
}

// HeldRun is a run that is paused. Runs counts those held for the same reason.
type HeldRun struct {
	Run    workqueue.RunID
	Name   string
	Plan   string
	Hold   control.Hold
	Detail string
	Since  time.Time
	By     string
	Runs   int64
}

// Gate stands for the hold of a run that is not held, and of which steps wait for somebody: Detail names them, and By
// is who must not approve; empty: anybody may.
const Gate control.Hold = "gate"

// LateSeal is an open run that was not sealed in time.
type LateSeal struct {
	Run    workqueue.RunID
	Name   string
	Plan   string
	SealBy time.Time
	Items  int64
}

const (
	// batchrun_failed finds them.
	healthFailed = `
SELECT id, coalesce(name, ''), plan, failed - accepted, finished_at, count(*) OVER (),
    (sum(failed - accepted) OVER ())::bigint
FROM batchrun
WHERE state = 'completed' AND failed > accepted AND finished_at > tranche_now() - $1::interval
ORDER BY id DESC LIMIT $2`

	// batchrun_active, and run_step_barrier for the steps that wait; a few of each reason.
	healthHeld = `
SELECT id, name, plan, hold, hold_detail, held_at, held_by, runs FROM (
    SELECT id, name, plan, hold, hold_detail, held_at, held_by,
        count(*) OVER (PARTITION BY hold) AS runs, row_number() OVER (PARTITION BY hold ORDER BY held_at, id) AS n
    FROM (
        SELECT id, coalesce(name, '') AS name, plan, hold, hold_detail, held_at, held_by
        FROM batchrun WHERE state = 'running' AND hold IS NOT NULL
        UNION ALL
        SELECT r.id, coalesce(r.name, ''), r.plan, 'gate', string_agg(st.name, ', ' ORDER BY st.step),
            min(st.gate_since), CASE WHEN bool_or(st.approval = 'other') THEN r.created_by ELSE '' END
        FROM batchrun r JOIN run_step st ON st.run_id = r.id AND st.barrier AND NOT st.barrier_passed
        WHERE r.state = 'running' AND st.gate_since IS NOT NULL GROUP BY r.id) w) h
WHERE n <= $1 ORDER BY held_at, id`

	// batchrun_active.
	healthOverdue = `
SELECT id, coalesce(name, ''), plan, seal_by, items FROM batchrun
WHERE state = 'running' AND opened AND sealed_at IS NULL AND seal_by <= tranche_now()
ORDER BY seal_by, id LIMIT $1`
)

func (f *Facts) queueRuns(b *pgx.Batch, l Limits) {
	queueRows(b, &f.Failed, healthFailed, l.Failed, l.Listed)
	queueRows(b, &f.Held, healthHeld, l.Listed)
	queueRows(b, &f.Overdue, healthOverdue, l.Listed)
}

// WorkingEndpoint is something that steps ask, and that running runs have work for which could be done now.
type WorkingEndpoint struct {
	Endpoint string
	Plain    bool // asked in plain requests only, over core NATS
	Runs     int64
	Out      int64 // requests
}

// WaitingRun is a run that has items to be sent for an endpoint, none that are out, and has had none for long.
type WaitingRun struct {
	Run      workqueue.RunID
	Name     string
	Plan     string
	Endpoint string
	Since    time.Time
}

// healthSteps returns the endpoints that running runs have work for, and the oldest steps of which nothing is out.
// batchrun_active finds the runs, work_slice_live what is out of them or due, and work_block_ready, asked once for each
// step, whether any block has ready items. Of the oldest idle steps only, the last thing that happened is looked up: an
// operator's action in audit_log_run, of which notes and acceptances move nothing, and what became of slices in
// work_slice_block, from its end and no further back than some thousand, since blocks are cut in order. A step
// whose endpoint is known to be down waits for that.
const healthSteps = `
WITH live AS MATERIALIZED (
    SELECT run_id, step, count(*) FILTER (WHERE state <> 'scheduled') AS out,
        bool_or(state = 'scheduled' AND not_before <= tranche_now()) AS due
    FROM work_slice WHERE state IN ('scheduled', 'claimed', 'sent') GROUP BY 1, 2),
work AS MATERIALIZED (
    SELECT r.id, r.name, r.plan, r.started_at, st.step, st.endpoint, st.kind, coalesce(l.out, 0) AS out,
        b.ready OR l.due AS due
    FROM batchrun r
    JOIN run_step st ON st.run_id = r.id
    LEFT JOIN live l ON l.run_id = st.run_id AND l.step = st.step
    LEFT JOIN LATERAL (
        SELECT true AS ready FROM work_block
        WHERE run_id = st.run_id AND step = st.step AND has_ready LIMIT 1) b ON true
    WHERE r.state = 'running' AND r.hold IS NULL AND (NOT st.barrier OR st.barrier_passed)
        AND (l.run_id IS NOT NULL OR b.ready)),
idle AS MATERIALIZED (
    SELECT * FROM work w
    WHERE out = 0 AND due AND started_at < tranche_now() - $1::interval
        AND NOT EXISTS (SELECT FROM endpoint_pace p WHERE p.endpoint = w.endpoint AND p.breaker = 'open')
    ORDER BY started_at, id, step LIMIT $2),
dated AS (
    SELECT i.*, greatest(i.started_at,
        (SELECT max(a.at) FROM audit_log a
            WHERE a.run_id = i.id AND a.action NOT IN ('note', 'accept', 'accept_withdraw')),
        (SELECT max(greatest(w.created_at, w.ended_at)) FROM (
            SELECT s.created_at, s.ended_at FROM work_slice s
            WHERE s.run_id = i.id AND s.step = i.step ORDER BY s.block DESC LIMIT 2000) w)) AS since
    FROM idle i)
SELECT endpoint, bool_and(kind = 'request'), count(DISTINCT id), sum(out)::bigint, NULL::uuid, '', '', NULL::timestamptz
FROM work GROUP BY endpoint
UNION ALL
SELECT endpoint, false, (since < tranche_now() - $1::interval)::int, 0, id, coalesce(name, ''), plan, since
FROM dated
ORDER BY 8 NULLS FIRST, 1, 5`

func (f *Facts) queueSteps(b *pgx.Batch, l Limits) {
	most, idle := min(l.Listed, maxIdle), 0
	b.Queue(healthSteps, l.Waiting, most).Query(func(rows pgx.Rows) error {
		var e WorkingEndpoint
		var run *workqueue.RunID
		var w WaitingRun
		var since *time.Time
		_, err := pgx.ForEachRow(rows, []any{&e.Endpoint, &e.Plain, &e.Runs, &e.Out, &run, &w.Name, &w.Plan, &since},
			func() error {
				if run == nil || since == nil {
					f.Working = append(f.Working, e)
					return nil
				}
				idle++
				f.IdleCut = idle == most
				if e.Runs > 0 { // it has been idle for long
					w.Run, w.Endpoint, w.Since = *run, e.Endpoint, *since
					f.Waiting = append(f.Waiting, w)
				}
				return nil
			})
		return err
	})
}

// StaleSlices are slices of one run that are past their deadline, and that no leader has seen to.
type StaleSlices struct {
	Run      workqueue.RunID
	Name     string
	Plan     string
	Slices   int64
	Items    int64
	Deadline time.Time // of the first
}

// UntakenRequests are requests for one endpoint that lie in the stream and that no service has taken for long.
type UntakenRequests struct {
	Endpoint string
	Slices   int64
	Items    int64
	Since    time.Time // the first was published
}

// OpenBreaker is an endpoint that most requests fail at.
type OpenBreaker struct {
	Endpoint string
	Reason   string
	Since    time.Time
	Runs     int64 // running runs that use it
}

const (
	// work_slice_live; what is out is bounded by the limits in flight.
	healthStale = `
SELECT w.run_id, coalesce(r.name, ''), r.plan, count(*), sum(bit_count(w.remaining))::bigint, min(w.deadline) AS first
FROM work_slice w JOIN batchrun r ON r.id = w.run_id
WHERE w.state IN ('claimed', 'sent') AND w.deadline < tranche_now() - $1::interval
GROUP BY w.run_id, r.name, r.plan ORDER BY first, w.run_id LIMIT $2`

	// The same. The leader notes from time to time what services have taken.
	healthUntaken = `
SELECT coalesce(w.endpoint, st.endpoint) AS endpoint, count(*), sum(bit_count(w.remaining))::bigint,
    min(w.sent_at) AS first
FROM work_slice w JOIN run_step st USING (run_id, step)
WHERE w.state = 'sent' AND w.handed_at IS NULL AND w.sent_at < tranche_now() - $1::interval
GROUP BY 1 ORDER BY first, 1 LIMIT $2`

	// One row for each endpoint.
	healthBreakers = `
SELECT p.endpoint, p.breaker_reason, p.breaker_since,
    (SELECT count(DISTINCT r.id) FROM batchrun r JOIN run_step st ON st.run_id = r.id
     WHERE r.state = 'running' AND st.endpoint = p.endpoint)
FROM endpoint_pace p WHERE p.breaker = 'open' AND ` + pace.Exists + ` ORDER BY p.breaker_since, p.endpoint LIMIT $1`
)

func (f *Facts) queueWork(b *pgx.Batch, l Limits) {
	queueRows(b, &f.Stale, healthStale, l.Stale, l.Listed)
	queueRows(b, &f.Untaken, healthUntaken, l.Waiting, l.Listed)
	f.queueSteps(b, l)
	queueRows(b, &f.Open, healthBreakers, l.Listed)
	queueRows(b, &f.Slow, pace.SlowEndpoints, nil, l.Listed)
}
