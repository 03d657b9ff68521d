package health

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// WorkingEndpoint is something that steps ask, and that running runs have work for which could be done now.
type WorkingEndpoint struct {
	Endpoint string
	Plain    bool // asked in plain requests only, over core NATS
	Runs     int64
	Out      int64 // requests
}

// waitingRun is a run that has items to be sent for an endpoint, none that are out, and has had none for long.
type waitingRun struct {
	runRow

	Endpoint string
	Since    time.Time
}

func (r *waitingRun) condition(f *Facts) Condition {
	return Condition{
		Severity: f.waits(r.Since), Subject: r.Run.String(), Since: r.Since,
		Link:  runLink(r.Run.String()),
		Title: fmt.Sprintf("Nothing moves for %s: %s", Ago(f.At.Sub(r.Since)), r),
		Detail: fmt.Sprintf("It has items for %s that could be sent, none of them is out, and nothing has happened to any.",
			r.Endpoint),
		Remedy: fmt.Sprintf("See what they wait for: `tranche run explain %s`", r.Run),
	}
}

// waitsLong is how many times Limits.Waiting it is critical after.
const waitsLong = 6

func (f *Facts) waits(since time.Time) Severity {
	if f.At.Sub(since) > waitsLong*f.limits.Waiting {
		return Critical
	}
	return Warning
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
SELECT endpoint, bool_and(kind = 'direct'), count(DISTINCT id), sum(out)::bigint, NULL::uuid, '', '', NULL::timestamptz
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
		var w waitingRun
		var since *time.Time
		_, err := pgx.ForEachRow(rows, []any{&e.Endpoint, &e.Plain, &e.Runs, &e.Out, &run, &w.Name, &w.Plan, &since},
			func() error {
				if run == nil || since == nil {
					f.Working = append(f.Working, e)
					return nil
				}
				if idle++; idle == most {
					f.cut(OldestWaiting)
				}
				if e.Runs > 0 { // it has been idle for long
					w := waitingRun{runRow{*run, w.Name, w.Plan}, e.Endpoint, *since}
					f.toSay = append(f.toSay, func() { f.found(OldestWaiting, w.condition(f)) })
				}
				return nil
			})
		return err
	})
}

// staleSlices are slices of one run that are past their deadline, and that no leader has seen to.
type staleSlices struct {
	runRow

	Slices   int64
	Items    int64
	Deadline time.Time // of the first
}

const (
	staleGrace  = 15 * time.Second // a leader sweeps every second
	staleUrgent = 2 * time.Minute
)

// work_slice_live; what is out is bounded by the limits in flight.
const healthStale = `
SELECT w.run_id, coalesce(r.name, ''), r.plan, count(*), sum(bit_count(w.remaining))::bigint, min(w.deadline) AS first
FROM work_slice w JOIN batchrun r ON r.id = w.run_id
WHERE w.state IN ('claimed', 'sent') AND w.deadline < tranche_now() - $1::interval
GROUP BY w.run_id, r.name, r.plan ORDER BY first, w.run_id LIMIT $2`

// staleRequests tells of requests past their deadline.
func staleRequests() query {
	return each(healthStale, []any{staleGrace, listed}, func(f *Facts, s *staleSlices) Condition {
		c := Condition{
			Subject: s.Run.String(), Since: s.Deadline,
			Title: fmt.Sprintf("%s past the deadline: %s", Count(s.Slices, "request"), s),
			Detail: fmt.Sprintf("They hold %s, the first since %s ago. The leader should have issued them again.",
				Count(s.Items, "item"), Ago(f.At.Sub(s.Deadline))),
			Remedy: fmt.Sprintf("See who leads, and what it says in its log: /nodes; what they wait for: "+
				"`tranche run explain %s`", s.Run),
		}
		if f.At.Sub(s.Deadline) > staleUrgent {
			c.Severity = Critical
		}
		return c
	})
}

// untaken are requests for one endpoint that lie in the stream and that no service has taken for long.
type untaken struct {
	Endpoint string
	Slices   int64
	Items    int64
	Since    time.Time // the first was published
}

// work_slice_live. The leader notes from time to time what services have taken.
const healthUntaken = `
SELECT coalesce(w.endpoint, st.endpoint) AS endpoint, count(*), sum(bit_count(w.remaining))::bigint,
    min(w.sent_at) AS first
FROM work_slice w JOIN run_step st USING (run_id, step)
WHERE w.state = 'sent' AND w.delivered_at IS NULL AND w.sent_at < tranche_now() - $1::interval
GROUP BY 1 ORDER BY first, 1 LIMIT $2`

// untakenRequests tells of requests that no service has taken for long.
func untakenRequests() query {
	return each(healthUntaken, []any{waiting, listed}, func(f *Facts, u *untaken) Condition {
		return Condition{
			Severity: f.waits(u.Since), Owner: OwnerService, Subject: u.Endpoint, Since: u.Since,
			Link:  endpointLink(u.Endpoint),
			Title: fmt.Sprintf("Requests for %s have waited for %s", u.Endpoint, Ago(f.At.Sub(u.Since))),
			Detail: fmt.Sprintf("%s with %s lie in the stream, and no service has taken them.", Count(u.Slices, "request"),
				Count(u.Items, "item")),
			Remedy: fmt.Sprintf("See what its services do: `tranche endpoints explain %s`; start more of them, or let each do "+
				"more at once: `tranche endpoints set %[1]s --concurrency N`", u.Endpoint),
		}
	})
}

// openBreaker is an endpoint that most requests fail at.
type openBreaker struct {
	Endpoint string
	Reason   string
	Since    time.Time
	Runs     int64 // running runs that use it
}

// One row for each endpoint.
const healthBreakers = `
SELECT p.endpoint, p.breaker_reason, p.breaker_since,
    (SELECT count(DISTINCT r.id) FROM batchrun r JOIN run_step st ON st.run_id = r.id
     WHERE r.state = 'running' AND st.endpoint = p.endpoint)
FROM endpoint_pace p WHERE p.breaker = 'open' AND ` + pace.Exists + ` ORDER BY p.breaker_since, p.endpoint LIMIT $1`

// openBreakers tells of endpoints that most requests fail at.
func openBreakers() query {
	return each(healthBreakers, []any{listed}, func(_ *Facts, b *openBreaker) Condition {
		c := Condition{
			Subject: b.Endpoint, Since: b.Since, Title: "Most requests fail at " + b.Endpoint,
			Detail: fmt.Sprintf("%s. %s it; one item at a time is sent, to see whether it is up again.", b.Reason, uses(b.Runs)),
			Remedy: fmt.Sprintf("See what its services say: `tranche endpoints explain %s`. It is asked again by itself when a "+
				"probe is answered", b.Endpoint),
		}
		if b.Runs == 0 {
			c.Severity = Info
		}
		return c
	})
}

// slowServices tells of services that became slow.
func slowServices() query {
	return each(pace.SlowEndpoints, []any{nil, listed}, func(_ *Facts, e *pace.SlowEndpoint) Condition {
		return Condition{
			Subject: e.Endpoint, Since: e.Since, Title: e.String(),
			Detail: fmt.Sprintf("Measured by the last requests that it answered, against the quickest of the last week. %s it.",
				uses(e.Runs)),
			Remedy: fmt.Sprintf("%s: `tranche endpoints show %s`. To send fewer requests at once: `tranche endpoints set %[2]s "+
				"--max-in-flight N`", logsOf(e.Endpoint), e.Endpoint),
		}
	})
}

// logsOf says where to look for why something became slow.
func logsOf(endpoint string) string {
	switch kind, of := workqueue.TargetKind(endpoint); kind {
	case workqueue.KindHTTP:
		return "Ask who runs " + of
	case workqueue.KindSQL:
		return "Look at what the database of source " + of + " does"
	default:
		return "Find its instances, and look into their logs"
	}
}

func uses(runs int64) string {
	switch runs {
	case 0:
		return "No running run uses"
	case 1:
		return "1 running run uses"
	default:
		return fmt.Sprintf("%d running runs use", runs)
	}
}
