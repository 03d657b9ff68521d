package health

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/pace"
)

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
