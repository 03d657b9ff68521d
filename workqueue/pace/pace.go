// Package pace stores what an endpoint can take: its limits, what was learned of it, and its circuit breaker. Its
// checks may be called by any node at any time.
package pace

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Store reads and writes the limits and state of endpoints. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// endpoint_pace holds what nodes know and decide about an endpoint's pace, over all runs. Its row exists from the
// seal of the first run that uses the endpoint; for a step loaded before paces existed, a claim inserts it.

// MakePaces runs before the run is visible, so that claims find the rows.
const MakePaces = `
INSERT INTO endpoint_pace (endpoint) SELECT DISTINCT endpoint FROM run_step WHERE run_id = $1 ORDER BY endpoint
ON CONFLICT DO NOTHING`

// MakeStepPace is for a step loaded before paces existed, and for the canary of its endpoint.
const MakeStepPace = `
INSERT INTO endpoint_pace (endpoint)
SELECT n.endpoint FROM run_step st CROSS JOIN LATERAL (
    SELECT st.endpoint UNION SELECT e.canary FROM endpoint_setting e
    WHERE e.endpoint = st.endpoint AND e.canary IS NOT NULL) n
WHERE st.run_id = $1 AND st.step = $2
ON CONFLICT DO NOTHING`

// PacesOfEndpoint reads what operators and nodes found out about the endpoint; both rows may be missing.
const PacesOfEndpoint = `
SELECT coalesce(p.chunk, 0), CASE WHEN p.chunk_cap_until > tranche_now() THEN p.chunk_cap ELSE 0 END,
    coalesce(p.rate, 0), coalesce(e.rate, 0)
FROM endpoint_pace p FULL JOIN endpoint_setting e USING (endpoint) WHERE endpoint = $1`

// Exists distinguishes an endpoint p in use from a misspelled name, whose row also stays: a running run or a collector
// uses it, or one of its last requests was taken or handled, by the index on endpoint and end.
const Exists = `(p.endpoint IN (SELECT st.endpoint FROM batchrun r JOIN run_step st ON st.run_id = r.id
        WHERE r.state = 'running' UNION ALL SELECT endpoint FROM collector)
    OR EXISTS (SELECT FROM (SELECT s.delivered_at, s.state, s.error_code FROM work_slice s
        WHERE s.endpoint = p.endpoint AND s.ended_at IS NOT NULL ORDER BY s.ended_at DESC LIMIT 1000) s
        WHERE s.delivered_at IS NOT NULL OR s.state = 'recorded' AND s.error_code IS NULL))`

// Observation is what happened at the endpoints with an automatic pace.
type Observation struct {
	Since, Until time.Time // when the slices of Ended ended, by the database's clock
	Endpoints    []PacedEndpoint
}

// PacedEndpoint is what happened at one endpoint.
type PacedEndpoint struct {
	Endpoint string
	// InFlightAuto and ChunkAuto: some step there has an automatic limit, or chunk size. ChunkTime is the least target
	// time of such steps; 0: none. ChunkMax is the largest size of theirs, or of any.
	InFlightAuto, ChunkAuto bool
	ChunkTime               time.Duration
	ChunkMax                int
	// Ceiling is the most requests that steps and operators permit, regardless of the pace.
	Ceiling int
	// Live are the requests in progress of steps with an automatic limit, Others the rest.
	Live, Others int
	Demand       bool // such a step has something to claim
	Pace         LearnedPace
	Ended        []EndedSlices
}

// LearnedPace is what is decided and known about an endpoint's pace.
type LearnedPace struct {
	InFlight int     // requests in progress; 0: undecided
	Rate     float64 // items a second; 0: no limit
	Chunk    int     // items in a request; 0: undecided
	Cap      int     // larger requests currently fail; 0: none known
	Open     bool    // the breaker is open
	Learned  []byte  // the controller's memory, a JSON object
}

// EndedSlices is slices of about one size with the same end.
type EndedSlices struct {
	Endpoint string
	Code     string // of the whole slice; "" if it was answered
	Slices   int
	Items    int
	Retried  int // items to be retried because of their own error
	Refused  int // of those, with one of the observer's codes
	Timed    int // slices whose service reported its working time
	Took     time.Duration
	Clocked  int           // slices made by their claim
	Stay     time.Duration // from claim to end
}

// commitLag is how old the end of a slice must be to be observed: its transaction may still be in progress.
const commitLag = 250 * time.Millisecond

// pacedEndpoints is the endpoints of running steps with an automatic limit or chunk; if all requests of one go to its
// canary, that instead. The search for demand stops at the first such step; the index of live slices gives those in
// progress.
const pacedEndpoints = `
WITH paced AS (
    SELECT coalesce(c.canary, st.endpoint COLLATE "C") AS endpoint,
           array_agg(DISTINCT st.endpoint COLLATE "C") AS named,
           bool_or(in_flight_auto) AS in_flight_auto, bool_or(chunk_auto) AS chunk_auto,
           min(chunk_time) FILTER (WHERE chunk_auto) AS chunk_time,
           coalesce(max(chunk) FILTER (WHERE chunk_auto), max(chunk)) AS chunk_max,
           coalesce(sum(in_flight) FILTER (WHERE in_flight_auto), 0) AS ceiling
    FROM batchrun r JOIN run_step st ON st.run_id = r.id
    LEFT JOIN endpoint_setting c
        ON c.endpoint = st.endpoint COLLATE "C" AND st.kind = 'endpoint' AND c.canary_share = 100
    WHERE r.state = 'running' AND r.hold IS NULL
    GROUP BY 1 HAVING bool_or(in_flight_auto OR chunk_auto)),
live AS (
    SELECT coalesce(s.endpoint, st.endpoint) AS endpoint, count(*) FILTER (WHERE st.in_flight_auto) AS auto,
           count(*) FILTER (WHERE NOT st.in_flight_auto) AS others
    FROM work_slice s JOIN run_step st ON st.run_id = s.run_id AND st.step = s.step
    WHERE s.state IN ('claimed', 'sent') GROUP BY 1)
SELECT d.endpoint, d.in_flight_auto, d.chunk_auto, coalesce(d.chunk_time, '0'), d.chunk_max,
       least(d.ceiling, coalesce(nullif(es.max_in_flight, 0), 10000)), coalesce(l.auto, 0), coalesce(l.others, 0),
       coalesce((SELECT true FROM (SELECT n AS endpoint, false AS down FROM unnest(d.named) n) e
           WHERE coalesce((SELECT true FROM ` + plane.ReadyAuto + ` t ` + pacedStep + `), false)
              OR coalesce((SELECT true FROM ` + plane.ReadyFixed + ` t ` + pacedStep + `), false)
              OR coalesce((SELECT true FROM ` + plane.DueAt + ` t ` + pacedStep + `), false) LIMIT 1), false),
       coalesce(p.in_flight, 0), coalesce(p.rate, 0), coalesce(p.chunk, 0),
       coalesce(CASE WHEN p.chunk_cap_until > tranche_now() THEN p.chunk_cap END, 0),
       coalesce(p.breaker = 'open', false), coalesce(p.learned, '{}')::text::bytea
FROM paced d
LEFT JOIN live l ON l.endpoint = d.endpoint LEFT JOIN endpoint_pace p ON p.endpoint = d.endpoint
LEFT JOIN endpoint_setting es ON es.endpoint = d.endpoint
ORDER BY d.endpoint`

// pacedStep looks up claimable steps t with an automatic limit or chunk, one at a time until it finds one.
const pacedStep = `
           WHERE coalesce((SELECT ` + plane.Unheld + ` AND (st.in_flight_auto OR st.chunk_auto)
               FROM batchrun r JOIN run_step st ON st.run_id = r.id
               WHERE r.id = t.run_id AND st.step = t.step), false) LIMIT 1`

// endedSlices groups what ended in a window, by the index of ended slices. It searches for error slots only in steps
// that had any, and only among the slice's ordinals. Sizes are grouped by fifths of a power of e.
const endedSlices = `
WITH ended AS MATERIALIZED (
    SELECT s.endpoint, s.run_id, s.step, s.id, coalesce(s.error_code, '') AS code, bit_count(s.mask) AS items, s.took,
           CASE WHEN s.cause = 'ready' THEN extract(epoch FROM s.ended_at - s.created_at) END AS stay,
           s.block * 8192 + position(B'1' IN s.mask) - 1 AS first, s.block * 8192 + 8191 AS last
    FROM work_slice s
    WHERE s.endpoint = ANY($1) AND s.ended_at > $2 AND s.ended_at <= $3
      AND (s.state = 'recorded' OR s.state = 'expired' AND s.error_code IN ('deadline', 'too_many_deliveries'))),
erring AS MATERIALIZED (
    SELECT run_id, step,
           EXISTS (SELECT 1 FROM work_error w WHERE w.run_id = d.run_id AND w.step = d.step) AS retried,
           EXISTS (SELECT 1 FROM work_result p WHERE p.run_id = d.run_id AND p.step = d.step
                     AND p.error_code = ANY($4)) AS refused
    FROM (SELECT DISTINCT run_id, step FROM ended) d)
SELECT e.endpoint, e.code, count(*), sum(e.items), coalesce(sum(w.retried), 0),
       coalesce(sum(w.refused), 0) + coalesce(sum(p.refused), 0), count(e.took),
       make_interval(secs => coalesce(sum(e.took), 0)), count(e.stay),
       make_interval(secs => coalesce(sum(e.stay), 0)::float8)
FROM ended e JOIN erring g USING (run_id, step)
LEFT JOIN LATERAL (
    SELECT count(*) AS retried, count(*) FILTER (WHERE w.error_code = ANY($4)) AS refused FROM work_error w
    WHERE g.retried AND w.run_id = e.run_id AND w.step = e.step AND w.ordinal BETWEEN e.first AND e.last
      AND w.slice_id = e.id) w ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS refused FROM work_result p
    WHERE g.refused AND p.run_id = e.run_id AND p.step = e.step AND p.error_code = ANY($4)
      AND p.ordinal BETWEEN e.first AND e.last AND p.slice_id = e.id) p ON true
GROUP BY e.endpoint, e.code, floor(ln(greatest(e.items, 1)) * 5)`

// endedSince uses the index of ended slices for each endpoint.
const endedSince = `
SELECT EXISTS (SELECT FROM unnest($1::text[]) AS e (endpoint) CROSS JOIN LATERAL (
    SELECT FROM work_slice s WHERE s.endpoint = e.endpoint AND s.ended_at > $2 LIMIT 1) s)`

// EndedSince reports whether anything ended at the endpoints since a time of the database.
func (s Store) EndedSince(ctx context.Context, names []string, since time.Time) (ended bool, err error) {
	err = s.db.Pool.QueryRow(ctx, endedSince, names, since).Scan(&ended)
	return ended, pg.Wrap(err, "find what ended at %d endpoints", len(names))
}

// Observe returns what happened at the endpoints with an automatic pace since the Until of an earlier observation; the
// zero time means the last second. refused are the error codes of services that refuse excess work.
func (s Store) Observe(ctx context.Context, since time.Time, refused []string) (Observation, error) {
	o := Observation{Since: since}
	now, err := pg.Now(ctx, s.db.Pool)
	if err != nil {
		return o, fmt.Errorf("observe endpoints: %w", err)
	}
	o.Until = now.Add(-commitLag)
	if since.IsZero() {
		o.Since = o.Until.Add(-time.Second)
	}
	if o.Endpoints, err = pg.Collect(ctx, s.db.Pool, scanPaced, pacedEndpoints); err != nil {
		return o, fmt.Errorf("observe endpoints: %w", err)
	}
	if len(o.Endpoints) == 0 {
		return o, nil
	}
	return o, s.observeEnded(ctx, &o, refused)
}

func scanPaced(row pgx.CollectableRow) (l PacedEndpoint, err error) {
	err = row.Scan(&l.Endpoint, &l.InFlightAuto, &l.ChunkAuto, &l.ChunkTime, &l.ChunkMax, &l.Ceiling, &l.Live, &l.Others,
		&l.Demand, &l.Pace.InFlight, &l.Pace.Rate, &l.Pace.Chunk, &l.Pace.Cap, &l.Pace.Open, &l.Pace.Learned)
	return l, err
}

func (s Store) observeEnded(ctx context.Context, o *Observation, refused []string) error {
	names, byName := make([]string, len(o.Endpoints)), map[string]*PacedEndpoint{}
	for i := range o.Endpoints {
		names[i] = o.Endpoints[i].Endpoint
		byName[names[i]] = &o.Endpoints[i]
	}
	ended, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[EndedSlices],
		endedSlices, names, o.Since, o.Until, refused)
	if err != nil {
		return fmt.Errorf("observe what ended at %d endpoints: %w", len(names), err)
	}
	for _, e := range ended {
		byName[e.Endpoint].Ended = append(byName[e.Endpoint].Ended, e)
	}
	return nil
}

// Change is a change of an endpoint's pace, human-readable.
type Change struct {
	What          string // in_flight, rate or chunk
	Before, After string
	Reason        string
}

// upsertPace writes only the controller's columns.
const upsertPace = `
INSERT INTO endpoint_pace AS p (endpoint, in_flight, rate, chunk, learned)
VALUES ($1, $2, nullif($3::float8, 0), nullif($4::int, 0), $5::text::jsonb)
ON CONFLICT (endpoint) DO UPDATE
SET in_flight = excluded.in_flight, rate = excluded.rate, chunk = excluded.chunk, learned = excluded.learned,
    changed_at = tranche_now()`

const insertChanges = `
INSERT INTO endpoint_change (endpoint, what, before, after, reason)
SELECT $1, u.what, u.before, u.after, u.reason
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS u (what, before, after, reason, n)
ORDER BY u.n`

// SavePace saves a controller's decisions and changes, locking one row. Leader work.
func (s Store) SavePace(ctx context.Context, lease workqueue.Lease, endpoint string, p LearnedPace,
	changes []Change,
) error {
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, upsertPace, endpoint, p.InFlight, p.Rate, p.Chunk, string(p.Learned))
		if err != nil || len(changes) == 0 {
			return err
		}
		var what, before, after, reasons []string
		for _, c := range changes {
			what, before, after = append(what, c.What), append(before, c.Before), append(after, c.After)
			reasons = append(reasons, pg.Plain(c.Reason))
		}
		_, err = tx.Exec(ctx, insertChanges, endpoint, what, before, after, reasons)
		return err
	})
	return pg.Wrap(err, "save the pace of endpoint %s", endpoint)
}

const keptChanges = 500

// pruneChanges uses the index of changes by endpoint.
const pruneChanges = `
DELETE FROM endpoint_change c
USING (SELECT e.endpoint, (SELECT k.id FROM endpoint_change k WHERE k.endpoint = e.endpoint
                           ORDER BY k.id DESC OFFSET $1 LIMIT 1) AS upto
       FROM (SELECT DISTINCT endpoint FROM endpoint_change) e) old
WHERE c.endpoint = old.endpoint AND c.id <= old.upto`

// PruneChanges deletes all but the newest changes of each endpoint, and returns how many. Leader work.
func (s Store) PruneChanges(ctx context.Context, lease workqueue.Lease) (int, error) {
	n, err := session.New(s.db).ExecAsLeader(ctx, lease, pruneChanges, keptChanges)
	return int(n), pg.Wrap(err, "forget old changes of endpoints")
}

// SlowEndpoint is a service, host or source that takes far longer for an item than before.
type SlowEndpoint struct {
	Endpoint    string
	Before, Now float64   // working seconds for an item
	Since       time.Time // start of the first slow request without a fast one since
	Runs        int64     // running runs that use it
}

// String includes both durations.
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

// measured is how long p's target worked on slices, newest first, by the index on endpoint and end: of the a.most
// slices that ended last before a.ago, the newest tenth that it answered. For a host or source, steps must have the
// same settings.
const measured = `(
    SELECT m.worked / m.items AS each, m.worked, m.ended_at - make_interval(secs => m.took) AS began, m.ended_at FROM (
        SELECT s.run_id, s.step, s.took, CASE WHEN p.config IS NULL THEN s.took ELSE s.worked END AS worked,
            bit_count(s.mask) AS items, s.ended_at, s.state = 'recorded' AND s.error_code IS NULL AS answered
        FROM work_slice s WHERE s.endpoint = p.endpoint AND s.ended_at > clock.now - interval '7 days'
          AND s.ended_at <= clock.now - a.ago
        ORDER BY s.ended_at DESC LIMIT a.most) m
    WHERE m.answered AND m.worked > 0 AND (p.config IS NULL OR EXISTS (
        SELECT 1 FROM run_step st WHERE st.run_id = m.run_id AND st.step = m.step AND st.config = p.config))
    ORDER BY m.ended_at DESC LIMIT a.most / 10)`

// SlowEndpoints returns services, hosts and sources of running runs that became slow, among the endpoints $1, or all
// if null: at most $2, the slowest first. Slow means that the last requests took at least a second, and ten times as
// long as the fastest of some earlier periods. Both must hold by request and by item, so that neither large nor
// small requests look slow, and the newest must not be fast again. The node's own waits, such as for a rate, do not
// count. Local functions are left out: their work is unknown.
const SlowEndpoints = `
WITH clock AS MATERIALIZED (SELECT tranche_now() AS now),
used AS MATERIALIZED (
    SELECT st.endpoint COLLATE "C" AS endpoint, st.config, count(DISTINCT r.id) AS runs
    FROM batchrun r JOIN run_step st ON st.run_id = r.id
    WHERE r.state = 'running' AND st.kind <> 'local' AND ($1::text[] IS NULL OR st.endpoint = ANY ($1))
    GROUP BY 1, 2),
slow AS MATERIALIZED (
    SELECT p.endpoint, p.config, p.runs, n.each, n.request
    FROM clock, used p CROSS JOIN LATERAL (
        SELECT count(*) AS requests, avg(m.each) AS each, avg(m.worked) AS request, max(m.ended_at) AS ended_at
        FROM (SELECT interval '0' AS ago, 50 AS most) a CROSS JOIN LATERAL ` + measured + ` m) n
    WHERE n.requests >= 3 AND n.request >= 1 AND n.ended_at > clock.now - interval '30 min'),
slower AS (
    SELECT DISTINCT ON (p.endpoint) p.endpoint, b.each AS before, p.each AS now, s.since, p.runs
    FROM clock, slow p CROSS JOIN LATERAL (
        SELECT g.each, g.request
        FROM (SELECT unnest('{1 min,5 min,30 min,3 h,1 day,3 days}'::interval[]) AS ago, 100 AS most) a
        CROSS JOIN LATERAL (
            SELECT count(*) AS requests, avg(m.each) AS each, avg(m.worked) AS request FROM ` + measured + ` m) g
        WHERE g.requests >= 3 ORDER BY g.each LIMIT 1) b
    CROSS JOIN LATERAL (
        SELECT min(w.began) AS since FROM (
            SELECT m.began, bool_and(m.each >= 2 * b.each) OVER (ORDER BY m.ended_at DESC) AS slow
            FROM (SELECT interval '0' AS ago, 20000 AS most) a CROSS JOIN LATERAL ` + measured + ` m) w
        WHERE w.slow) s
    WHERE p.each >= 10 * b.each AND p.request >= 10 * b.request AND s.since IS NOT NULL
    ORDER BY p.endpoint, p.each / b.each DESC)
SELECT endpoint, before::float8, now::float8, since, runs FROM slower
ORDER BY now / before DESC, endpoint LIMIT $2`
