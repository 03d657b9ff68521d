package health

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/pace"
)

// The statements of the rules, each with the index that it uses. Templates read its columns by name. Every row has
// `subject` and `since`; `count`, `of`, `severity`, `kind` and `case`, where present, override the rule.
const (
	// batchrun_failed. Accepted failures do not count. A rerun reopens the run, which removes its condition.
	failedRuns = `
WITH failed AS (
    SELECT id, name, plan, failed - accepted AS items, finished_at, row_number() OVER (ORDER BY id DESC) AS nth
    FROM batchrun
    WHERE state = 'completed' AND failed > accepted AND finished_at > tranche_now() - $1::interval)
SELECT '' AS case, id::text AS subject, name, plan, items AS count, 1::bigint AS of, finished_at AS since, nth
FROM failed WHERE nth <= $2
UNION ALL
SELECT 'older', 'older runs', '', '', sum(items)::bigint, count(*), max(finished_at), NULL
FROM failed WHERE nth > $2 HAVING count(*) > 0
ORDER BY nth`

	// batchrun_active, and run_step_barrier for waiting steps of runs that are not held. A few rows for each reason.
	heldRuns = `
SELECT kind, id::text AS subject, name, plan, detail, since, by, other, steps, known,
    CASE steps WHEN 1 THEN detail ELSE 'NAME' END AS step
FROM (
    SELECT *, count(*) OVER (PARTITION BY kind) AS known, row_number() OVER (PARTITION BY kind ORDER BY since, id) AS n
    FROM (
        SELECT CASE hold WHEN 'fail_fast' THEN 'run_fail_fast' WHEN 'canary' THEN 'run_approval'
                WHEN 'threshold' THEN 'run_over_limit' ELSE 'run_held' END AS kind,
            id, name, plan, hold_detail AS detail, held_at AS since, held_by AS by, false AS other, 0 AS steps
        FROM batchrun WHERE state = 'running' AND hold IS NOT NULL
        UNION ALL
        SELECT 'run_gate', r.id, r.name, r.plan, string_agg(st.name, ', ' ORDER BY st.step), min(st.gate_since),
            '', bool_or(st.approval = 'other'), count(*)
        FROM batchrun r JOIN run_step st ON st.run_id = r.id AND st.barrier AND NOT st.barrier_passed
        WHERE r.state = 'running' AND st.gate_since IS NOT NULL GROUP BY r.id) w) h
WHERE n <= $1 ORDER BY since, id`

	// batchrun_active.
	unsealedRuns = `
SELECT id::text AS subject, name, plan, seal_deadline AS since, items FROM batchrun
WHERE state = 'running' AND opened AND sealed_at IS NULL AND seal_deadline <= tranche_now()
ORDER BY seal_deadline, id LIMIT $1`

	// servedBy is the endpoint that gets the requests of a step st: its own, or a canary that gets all.
	servedBy = `coalesce((SELECT o.canary FROM endpoint_setting o WHERE o.endpoint = st.endpoint COLLATE "C"
        AND st.kind = 'endpoint' AND o.canary_share = 100), st.endpoint)`

	openBreakers = `
SELECT endpoint AS subject, breaker_since AS since, breaker_reason AS reason, runs,
    CASE runs WHEN 0 THEN 'info' END AS severity
FROM (
    SELECT *, (SELECT count(DISTINCT r.id) FROM batchrun r JOIN run_step st ON st.run_id = r.id
        WHERE r.state = 'running' AND p.endpoint = ` + servedBy + `) AS runs
    FROM endpoint_pace p WHERE p.breaker = 'open' AND ` + pace.Exists + `) b
ORDER BY since, subject LIMIT $1`

	slowServices = `SELECT endpoint AS subject, before, now, since, runs FROM (` + pace.SlowEndpoints + `) s`

	// work_slice_live. The leader periodically records which requests services have taken.
	untakenRequests = `
SELECT 'untaken' AS case, coalesce(w.endpoint, st.endpoint) AS subject, count(*) AS slices,
    sum(bit_count(w.remaining))::bigint AS items, min(w.sent_at) AS since
FROM work_slice w JOIN run_step st USING (run_id, step)
WHERE w.state = 'sent' AND w.delivered_at IS NULL AND w.sent_at < tranche_now() - $1::interval
GROUP BY 2 ORDER BY since, subject LIMIT $2`

	// work_slice_live. In-flight limits bound the slices.
	staleRequests = `
SELECT w.run_id::text AS subject, r.name, r.plan, count(*) AS slices, sum(bit_count(w.remaining))::bigint AS items,
    min(w.deadline) AS since,
    CASE WHEN min(w.deadline) < tranche_now() - interval '2 min' THEN 'critical' END AS severity
FROM work_slice w JOIN batchrun r ON r.id = w.run_id
WHERE w.state IN ('claimed', 'sent') AND w.deadline < tranche_now() - $1::interval
GROUP BY w.run_id, r.name, r.plan ORDER BY since, w.run_id LIMIT $2`

	// dead_letter_state, backwards.
	deadLetters = `
SELECT endpoint AS subject, count(*), min(at) AS since FROM (
    SELECT endpoint, at FROM dead_letter WHERE state = 'waiting' ORDER BY id DESC LIMIT $1) d
GROUP BY endpoint ORDER BY 2 DESC, 1 LIMIT $2`

	// The primary key, backwards.
	quarantined = `
SELECT reason AS subject, count(*), min(at) AS since, max(at) AS last
FROM (SELECT reason, at FROM quarantine ORDER BY id DESC LIMIT $1) q
WHERE at > tranche_now() - $2::interval
GROUP BY reason ORDER BY 2 DESC, 1 LIMIT $3`

	// run_event_unpublished. NATS is unreachable, or refuses events from the nodes' user.
	waitingEvents = `
SELECT 'events' AS subject, count(*), min(at) AS since, string_agg(DISTINCT kind, ', ' ORDER BY kind) AS kinds
FROM run_event WHERE published_at IS NULL AND at < tranche_now() - $1::interval HAVING count(*) > 0`

	endingTokens = `
SELECT name AS subject, role, expires_at AS ends, expires_at - $1::interval AS since,
    CASE WHEN expires_at < tranche_now() + interval '1 day' THEN 'warning' ELSE 'info' END AS severity
FROM api_token WHERE revoked_at IS NULL AND rotated_at IS NULL
    AND expires_at > tranche_now() AND expires_at < tranche_now() + $1::interval
ORDER BY expires_at, id LIMIT $2`

	// The last occurrence of each schedule, by the primary key, backwards.
	failedSchedules = `
SELECT s.name AS subject, f.state = 'missed' AS missed, f.due_at AS due, f.reason, f.ended_at AS since
FROM schedule s CROSS JOIN LATERAL (
    SELECT * FROM schedule_occurrence f WHERE f.schedule = s.name AND f.ended_at IS NOT NULL
    ORDER BY f.due_at DESC LIMIT 1) f
WHERE s.deleted_at IS NULL AND f.state IN ('failed', 'missed')
ORDER BY f.ended_at DESC, s.name LIMIT $1`

	// schedule_due and schedule_occurrence_waiting. Queued occurrences wait for a run, unless their start has failed.
	// A first attempt may begin long after the due time: when a window opens, or when those before it have ended.
	stuckSchedules = `
SELECT '' AS case, name AS subject, next_due AS due, '' AS reason, NULL::timestamptz AS loading, next_due AS since
FROM schedule WHERE state = 'active' AND deleted_at IS NULL AND next_due < tranche_now() - $1::interval
UNION ALL
SELECT 'taken', f.schedule, f.due_at, f.reason, CASE f.state WHEN 'starting' THEN f.began_at END,
    greatest(f.created_at, f.due_at)
FROM schedule_occurrence f JOIN schedule s ON s.name = f.schedule
WHERE (f.state IN ('due', 'starting') OR f.state = 'queued' AND f.attempts > 0) AND s.state = 'active'
  AND CASE WHEN f.state = 'starting' AND f.attempts = 1 THEN f.began_at
           WHEN f.attempts > 0 THEN f.created_at ELSE f.start_at END < tranche_now() - $2::interval
ORDER BY since, subject LIMIT $3`

	// batchrun_done_by.
	atRiskRuns = `
SELECT id::text AS subject, name, plan, done_by AS by, (at_risk->>'since')::timestamptz AS since,
    at_risk->>'late' AS late, (at_risk->>'ends')::timestamptz AS ends, at_risk->>'bound_by' AS bound,
    at_risk->'fix'->>'text' AS fix, at_risk->'fix'->>'command' AS command
FROM batchrun WHERE state = 'running' AND done_by > tranche_now() AND at_risk IS NOT NULL
ORDER BY done_by, id LIMIT $1`

	// batchrun_done_by and schedule_occurrence_run.
	lateRuns = `
SELECT r.id::text AS subject, r.name, r.plan, r.done_by AS since, (
        SELECT max(f.late_action) FROM schedule_occurrence f WHERE f.run_id = r.id) AS did
FROM batchrun r WHERE r.state IN ('loading', 'running') AND r.done_by <= tranche_now()
ORDER BY r.done_by, r.id LIMIT $1`

	// collector_op_parked.
	parkedOps = `
SELECT c.name AS subject, p.ops AS count, p.since
FROM collector c CROSS JOIN LATERAL (
    SELECT count(*) AS ops, min(parked_at) AS since FROM (
        SELECT parked_at FROM collector_op o WHERE o.collector = c.id AND parked_at IS NOT NULL
        ORDER BY seq LIMIT $1) AS few) p
WHERE c.state <> 'deleting' AND p.ops > 0
ORDER BY p.ops DESC, c.name LIMIT $2`

	// Why the last flush of a collector failed, unless a later one succeeded.
	failedFlush = `CASE WHEN c.failures > 0 THEN c.failure_code END AS failure, c.failure_message AS message`

	// collector_key_due, for each key version and priority. A full key is due before its oldest operation is max_age old.
	lateFlushes = `
SELECT c.name AS subject, c.endpoint, c.state AS case, CASE c.state WHEN 'paused' THEN 'info' END AS severity,
    c.paused_by AS by, d.oldest + c.max_age AS since, ` + failedFlush + `
FROM collector c CROSS JOIN LATERAL (
    SELECT min(CASE WHEN first.due_at < tranche_now() THEN greatest(
        least(first.due_at, first.oldest_at), first.retry_at - c.max_age) END) AS oldest
    FROM generate_series(c.drained_key_version, c.key_version) AS n CROSS JOIN generate_series(0, c.levels) AS p
    CROSS JOIN LATERAL (
        SELECT due_at, oldest_at, retry_at FROM collector_key k
        WHERE k.collector = c.id AND k.key_version = n AND k.priority = p AND flush IS NULL AND due_at IS NOT NULL
        ORDER BY due_at LIMIT 1) first) d
WHERE c.state <> 'deleting' AND d.oldest < tranche_now() - c.max_age - $1::interval
ORDER BY since, subject LIMIT $2`

	// collector_key_flushing. After a failure the condition comes before the timeout, which may be an hour.
	hungFlushes = `
SELECT c.name AS subject, c.endpoint, k.key, k.flushed_at AS since,
    extract(epoch FROM c.timeout)::float8 AS timeout, ` + failedFlush + `
FROM collector c CROSS JOIN LATERAL (
    SELECT key, flushed_at FROM collector_key f
    WHERE f.collector = c.id AND f.flush IS NOT NULL ORDER BY flushed_at LIMIT 1) k
WHERE c.state <> 'deleting' AND (k.flushed_at < tranche_now() - c.timeout - $1::interval
    OR c.failures > 0 AND k.flushed_at < tranche_now() - $2::interval)
ORDER BY since, subject LIMIT $3`

	refusedAdds = `
SELECT name AS subject, refused_since AS since, refused_at AS last, rtrim(refused_for, '.') AS problem FROM collector
WHERE state <> 'deleting' AND refused_since IS NOT NULL AND refused_at > tranche_now() - $1::interval
ORDER BY 2, 1 LIMIT $2`

	failingAlerts = `
SELECT a.name AS subject, a.failing_since AS since, a.failures, split_part(a.error, E'\n', 1) AS reason,
    (SELECT count(*) FROM alert_message m WHERE m.alert = a.name AND m.state = 'waiting') AS messages
FROM alert a
WHERE a.deleted_at IS NULL AND a.state = 'active' AND a.failing_since < tranche_now() - $1::interval
ORDER BY a.failing_since, a.name LIMIT $2`

	// At most one row. If the log ends before what was sent, rows were deleted or the database lost commits.
	stalledSink = `
SELECT s.target AS subject, coalesce(next.at, tranche_now()) AS since,
    CASE WHEN h.seal < s.seal
        THEN format('The log ends at seal %s, and %s was sent: see tranche audit verify.', h.seal, s.seal)
        ELSE coalesce(nullif(s.error, '') || '.', 'No node forwards it: start the nodes with --audit-sink.')
    END AS reason
FROM audit_sink s CROSS JOIN audit_head h LEFT JOIN LATERAL (
    SELECT l.at FROM audit_log l WHERE l.seal > s.seal ORDER BY l.seal LIMIT 1) next ON true
WHERE h.seal < s.seal OR next.at < tranche_now() - $1::interval`

	// At most one row.
	failingArchive = `
SELECT target AS subject, since, rtrim(error, '.') || '.' AS reason FROM archive
WHERE since < tranche_now() - $1::interval`

	// At most one row.
	streamTrouble = `
SELECT 'streams' AS subject, last_error AS trouble, since, tries FROM stream_setting WHERE last_error <> ''`

	// A table of few rows.
	databaseGaps = `
SELECT CASE WHEN NOT lost THEN 'moved' END AS case, noticed_at AS since, from_at AS from, to_at AS to, runs,
    to_char(noticed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS subject
FROM database_rewind
WHERE noticed_at > tranche_now() - CASE WHEN lost THEN $2::interval ELSE $3::interval END
ORDER BY id DESC LIMIT $1`
)

// WorkingEndpoint is a target of steps for which running runs have work that is due.
type WorkingEndpoint struct {
	Endpoint string
	Plain    bool // called only by plain requests over core NATS
	Runs     int64
	Out      int64 // requests
}

// healthSteps returns the endpoints for which running runs have work, and the oldest steps with none in flight. It
// reads batchrun_active for the runs, work_slice_live for slices in flight or due, and work_block_ready once a step.
// For the oldest idle steps it also finds the last event: an operator's action in audit_log_run, except notes and
// acceptances, which move nothing; and slice outcomes from the end of work_slice_block, a few thousand at most,
// since blocks are cut in order. A step whose endpoint is known to be down is not idle.
const healthSteps = `
WITH live AS MATERIALIZED (
    SELECT run_id, step, count(*) FILTER (WHERE state <> 'scheduled') AS out,
        bool_or(state = 'scheduled' AND not_before <= tranche_now()) AS due
    FROM work_slice WHERE state IN ('scheduled', 'claimed', 'sent') GROUP BY 1, 2),
work AS MATERIALIZED (
    SELECT r.id, r.name, r.plan, r.started_at, st.step, ` + servedBy + ` AS endpoint, st.kind,
        coalesce(l.out, 0) AS out, b.ready OR l.due AS due
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
SELECT endpoint, bool_and(kind = 'direct'), count(DISTINCT id), sum(out)::bigint, NULL::text, '', '', NULL::timestamptz
FROM work GROUP BY endpoint
UNION ALL
SELECT endpoint, false, (since < tranche_now() - $1::interval)::int, 0, id::text, coalesce(name, ''), plan, since
FROM dated
ORDER BY 8 NULLS FIRST, 1, 5`

// queueSteps reads which endpoints have work, and which runs have been idle for long: items ready, none in flight.
func (f *Facts) queueSteps(b *pgx.Batch) {
	most, idle := min(f.limits.Listed, maxIdle), 0
	b.Queue(healthSteps, f.limits.Waiting, most).Query(func(rows pgx.Rows) error {
		var e WorkingEndpoint
		var run *string
		var name, plan string
		var since *time.Time
		_, err := pgx.ForEachRow(rows, []any{&e.Endpoint, &e.Plain, &e.Runs, &e.Out, &run, &name, &plan, &since},
			func() error {
				if run == nil || since == nil {
					f.Working = append(f.Working, e)
					return nil
				}
				if idle++; idle == most {
					f.cut(OldestWaiting)
				}
				if e.Runs > 0 {
					f.rows = append(f.rows, found{OldestWaiting, Row{"subject": *run, "name": name, "plan": plan,
						"endpoint": e.Endpoint, "since": *since}})
				}
				return nil
			})
		return err
	})
}
