package pace

import (
	"fmt"
	"time"
)

// SlowEndpoint is a service that takes far longer for an item than it did before.
type SlowEndpoint struct {
	Endpoint    string
	Before, Now float64   // seconds that it works on an item
	Since       time.Time // when it began the first of the slow requests, without a quick one since
	Runs        int64     // running runs that use it
}

// String says so, with both figures.
func (e *SlowEndpoint) String() string {
	return fmt.Sprintf("%s became slow: an item takes %s, and took %s before", e.Endpoint, timeText(e.Now),
		timeText(e.Before))
}

func timeText(seconds float64) string {
	switch {
	case seconds >= 1:
		return fmt.Sprintf("%.3g s", seconds)
	case seconds >= 1e-3:
		return fmt.Sprintf("%.3g ms", seconds*1e3)
	default:
		return fmt.Sprintf("%.3g µs", seconds*1e6)
	}
}

// measured is how long a service p worked on slices, the newest first, read by the index on endpoint and end: of the
// a.most slices that ended last before a.ago, the newest tenth that it answered.
const measured = `(
    SELECT m.took / m.items AS each, m.took, m.ended_at FROM (
        SELECT s.took, bit_count(s.mask) AS items, s.ended_at, s.state = 'recorded' AND s.error_code IS NULL AS answered
        FROM work_slice s WHERE s.endpoint = p.endpoint AND s.ended_at > clock.now - interval '7 days'
          AND s.ended_at <= clock.now - a.ago
        ORDER BY s.ended_at DESC LIMIT a.most) m
    WHERE m.answered AND m.took > 0 ORDER BY m.ended_at DESC LIMIT a.most / 10)`

// SlowEndpoints returns services that running runs use and that became slow: of the endpoints $1, or of all when it is
// null, at most $2, the slowest first. One is slow when its last requests took at least a second each, and ten times as
// long as those at the quickest of some times before. That must hold by the request and by the item, so that neither
// large nor small requests look slow, and the newest must not be quick again. What nodes do themselves is left out: the
// requests to one host or source differ.
const SlowEndpoints = `
WITH clock AS MATERIALIZED (SELECT tranche_now() AS now),
slow AS MATERIALIZED (
    SELECT p.endpoint, n.each, n.request
    FROM clock, endpoint_pace p CROSS JOIN LATERAL (
        SELECT count(*) AS requests, avg(m.each) AS each, avg(m.took) AS request, max(m.ended_at) AS ended_at
        FROM (SELECT interval '0' AS ago, 50 AS most) a CROSS JOIN LATERAL ` + measured + ` m) n
    WHERE p.endpoint NOT LIKE '%:%' AND ($1::text[] IS NULL OR p.endpoint = ANY ($1))
      AND n.requests >= 3 AND n.request >= 1 AND n.ended_at > clock.now - interval '30 min')
SELECT p.endpoint, b.each::float8, p.each::float8, s.since, r.runs
FROM clock, slow p CROSS JOIN LATERAL (
    SELECT g.each, g.request
    FROM (SELECT unnest('{1 min,5 min,30 min,3 h,1 day,3 days}'::interval[]) AS ago, 100 AS most) a CROSS JOIN LATERAL (
        SELECT count(*) AS requests, avg(m.each) AS each, avg(m.took) AS request FROM ` + measured + ` m) g
    WHERE g.requests >= 3 ORDER BY g.each LIMIT 1) b
CROSS JOIN LATERAL (
    SELECT min(w.began) AS since FROM (
        SELECT m.ended_at - make_interval(secs => m.took) AS began,
               bool_and(m.each >= 2 * b.each) OVER (ORDER BY m.ended_at DESC) AS slow
        FROM (SELECT interval '0' AS ago, 20000 AS most) a CROSS JOIN LATERAL ` + measured + ` m) w
    WHERE w.slow) s
CROSS JOIN LATERAL (
    SELECT count(DISTINCT r.id) AS runs FROM batchrun r JOIN run_step st ON st.run_id = r.id
    WHERE r.state = 'running' AND st.endpoint = p.endpoint) r
WHERE p.each >= 10 * b.each AND p.request >= 10 * b.request AND r.runs > 0 AND s.since IS NOT NULL
ORDER BY p.each / b.each DESC, p.endpoint LIMIT $2`
