package measure

// Runs are those under way that stand alike.
type Runs struct {
	State  string  // loading, running, or held
	Hold   string  // why they are held; empty: they are not
	Count  int64   // of them
	Oldest float64 // age of the one that was made first
}

// Endpoint is one that something is known of, or that runs under way have work for, with the work of runs that are not
// held. What is nil is not known, or there is none.
type Endpoint struct {
	Endpoint  string // or what else paces a step, like http:HOST
	Ready     int64  // items that may go out
	Scheduled int64  // items that are to be tried again after a pause
	InFlight  int64  // items that are out
	Requests  int64  // that are out, chunks of the node's own work included
	Oldest    float64
	Limit     *int64 // of requests at once: what operators set, or else what nodes have found
	Open      bool   // its breaker
	Rate      *float64
	Chunk     *int64
}

const (
	// batchrun_active.
	runs = `
SELECT CASE WHEN state = 'loading' THEN state WHEN hold IS NULL THEN 'running' ELSE 'held' END, coalesce(hold, ''),
    count(*), extract(epoch FROM tranche_now() - min(created_at))::float8
FROM batchrun WHERE state IN ('loading', 'running') GROUP BY 1, 2 ORDER BY 1, 2`

	// batchrun_active.
	overdue = `
SELECT count(*) FROM batchrun
WHERE state = 'running' AND opened AND sealed_at IS NULL AND seal_by <= tranche_now()`

	// endpoints reads batchrun_active and, for each of the runs, work_block_ready; what is out is found by
	// work_slice_live and bounded by the limits in flight. A block's plane is read only where something is ready.
	endpoints = `
WITH live AS MATERIALIZED (
    SELECT coalesce(s.endpoint, st.endpoint) AS endpoint,
        count(*) FILTER (WHERE s.state <> 'scheduled') AS requests,
        sum(bit_count(s.remaining)) FILTER (WHERE s.state <> 'scheduled') AS in_flight,
        sum(bit_count(s.remaining)) FILTER (WHERE s.state = 'scheduled') AS scheduled,
        min(s.sent_at) FILTER (WHERE s.state = 'sent' AND s.handed_at IS NULL) AS untaken
    FROM work_slice s
    JOIN run_step st ON st.run_id = s.run_id AND st.step = s.step
    JOIN batchrun r ON r.id = s.run_id AND (r.hold IS NULL OR s.state <> 'scheduled')
    WHERE s.state IN ('scheduled', 'claimed', 'sent') GROUP BY 1),
ready AS MATERIALIZED (
    SELECT st.endpoint, sum(b.items) AS items
    FROM batchrun r JOIN run_step st ON st.run_id = r.id
    CROSS JOIN LATERAL (
        SELECT sum(bit_count(ready)) AS items FROM work_block
        WHERE run_id = st.run_id AND step = st.step AND has_ready) b
    WHERE r.state = 'running' AND r.hold IS NULL AND (NOT st.barrier OR st.barrier_passed) AND b.items > 0
    GROUP BY 1)
SELECT endpoint, coalesce(ready.items, 0)::bigint, coalesce(live.scheduled, 0)::bigint,
    coalesce(live.in_flight, 0)::bigint, coalesce(live.requests, 0),
    coalesce(extract(epoch FROM tranche_now() - live.untaken), 0)::float8,
    coalesce(nullif(e.max_in_flight, 0), p.in_flight)::bigint, coalesce(p.breaker = 'open', false),
    least(nullif(e.rate, 0), p.rate), p.chunk::bigint
FROM endpoint_pace p
FULL JOIN endpoint_setting e USING (endpoint)
FULL JOIN live USING (endpoint)
FULL JOIN ready USING (endpoint)
ORDER BY coalesce(ready.items, 0) + coalesce(live.requests, 0) > 0 DESC, endpoint`
)
