package health

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
)

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
