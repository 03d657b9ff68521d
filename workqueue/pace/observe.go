package pace

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Observation is what was going on at the endpoints whose pace is automatic.
type Observation struct {
	Since, Until time.Time // what Ended ended in between, by the clock of the database
	Endpoints    []PacedEndpoint
}

// PacedEndpoint is what was going on at one endpoint.
type PacedEndpoint struct {
	Endpoint string
	// InFlightAuto says that some step there leaves its requests under way to the pace, ChunkAuto their size. ChunkTime
	// is the least time that such a step wants a request to take, 0 when none says; ChunkMax the largest size that one
	// allows, or that any step has when none of them leaves it to the pace.
	InFlightAuto, ChunkAuto bool
	ChunkTime               time.Duration
	ChunkMax                int
	// Ceiling is how many requests steps and operators would allow at the most, whatever the pace.
	Ceiling int
	// Live are the requests under way of steps that leave them to the pace, Others those beside them.
	Live, Others int
	Demand       bool // such a step has something to claim
	Pace         LearnedPace
	Ended        []EndedSlices
}

// LearnedPace is what is decided and known about the pace of an endpoint.
type LearnedPace struct {
	InFlight int     // requests under way; 0: nothing is decided
	Rate     float64 // items a second; 0: no limit
	Chunk    int     // items in a request; 0: nothing is decided
	Cap      int     // larger requests fail, at present; 0: no such thing is known
	Open     bool    // the breaker is open
	Learned  []byte  // the controller's memory: a JSON object
}

// EndedSlices are slices of about one size that ended the same way.
type EndedSlices struct {
	Endpoint string
	Code     string // of the slice as a whole; "" when it was answered
	Slices   int
	Items    int // in all of them
	Retried  int // of those, to be tried again because of an error of their own
	Refused  int // of those, with one of the codes that the observer asked for
	Timed    int // slices of which the service said how long it worked
	Took     time.Duration
	Clocked  int           // slices that were not made before they were claimed
	Stay     time.Duration // from their claim to their end
}

// commitLag is how old the end of a slice has to be to be looked at: the transaction that noted it may be under way.
const commitLag = 250 * time.Millisecond

// pacedEndpoints are the endpoints of running steps that leave something to the pace. Whether there is demand is looked
// for only until one such step has some; the slices under way come from the index of live ones.
const pacedEndpoints = `
WITH paced AS (
    SELECT endpoint COLLATE "C" AS endpoint, false AS down, bool_or(in_flight_auto) AS in_flight_auto,
           bool_or(chunk_auto) AS chunk_auto,
           min(chunk_time) FILTER (WHERE chunk_auto) AS chunk_time,
           coalesce(max(chunk) FILTER (WHERE chunk_auto), max(chunk)) AS chunk_max,
           coalesce(sum(in_flight) FILTER (WHERE in_flight_auto), 0) AS ceiling
    FROM batchrun r JOIN run_step st ON st.run_id = r.id WHERE r.state = 'running' AND r.hold IS NULL
    GROUP BY endpoint COLLATE "C" HAVING bool_or(in_flight_auto OR chunk_auto)),
live AS (
    SELECT coalesce(s.endpoint, st.endpoint) AS endpoint, count(*) FILTER (WHERE st.in_flight_auto) AS auto,
           count(*) FILTER (WHERE NOT st.in_flight_auto) AS others
    FROM work_slice s JOIN run_step st ON st.run_id = s.run_id AND st.step = s.step
    WHERE s.state IN ('claimed', 'sent') GROUP BY 1)
SELECT e.endpoint, e.in_flight_auto, e.chunk_auto, coalesce(e.chunk_time, '0'), e.chunk_max,
       least(e.ceiling, coalesce(nullif(es.max_in_flight, 0), 10000)), coalesce(l.auto, 0), coalesce(l.others, 0),
       coalesce((SELECT true FROM ` + plane.ReadyAuto + ` t ` + pacedStep + `), false)
           OR coalesce((SELECT true FROM ` + plane.ReadyFixed + ` t ` + pacedStep + `), false)
           OR coalesce((SELECT true FROM ` + plane.DueAt + ` t ` + pacedStep + `), false),
       coalesce(p.in_flight, 0), coalesce(p.rate, 0), coalesce(p.chunk, 0),
       coalesce(CASE WHEN p.chunk_cap_until > tranche_now() THEN p.chunk_cap END, 0),
       coalesce(p.breaker = 'open', false), coalesce(p.learned, '{}')::text::bytea
FROM paced e LEFT JOIN live l USING (endpoint) LEFT JOIN endpoint_pace p USING (endpoint)
LEFT JOIN endpoint_setting es USING (endpoint)
ORDER BY e.endpoint`

// pacedStep is what follows of a step t that leaves something to the pace and may be claimed of: looked up one by one,
// until there is one.
const pacedStep = `
           WHERE coalesce((SELECT ` + plane.Unheld + ` AND (st.in_flight_auto OR st.chunk_auto)
               FROM batchrun r JOIN run_step st ON st.run_id = r.id
               WHERE r.id = t.run_id AND st.step = t.step), false) LIMIT 1`

// endedSlices groups what ended in a window, by the index of ended slices. Error slots are looked for only of steps
// that have had any, and only among the ordinals of the slice. Sizes are grouped by fifths of a power of e.
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
           EXISTS (SELECT 1 FROM work_part p WHERE p.run_id = d.run_id AND p.step = d.step
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
    SELECT count(*) AS refused FROM work_part p
    WHERE g.refused AND p.run_id = e.run_id AND p.step = e.step AND p.error_code = ANY($4)
      AND p.ordinal BETWEEN e.first AND e.last AND p.slice_id = e.id) p ON true
GROUP BY e.endpoint, e.code, floor(ln(greatest(e.items, 1)) * 5)`

// endedSince goes by the index of ended slices, endpoint by endpoint.
const endedSince = `
SELECT EXISTS (SELECT FROM unnest($1::text[]) AS e (endpoint) CROSS JOIN LATERAL (
    SELECT FROM work_slice s WHERE s.endpoint = e.endpoint AND s.ended_at > $2 LIMIT 1) s)`

// EndedSince reports whether anything ended at endpoints since a time of the database. It costs less than Observe.
func (s Store) EndedSince(ctx context.Context, names []string, since time.Time) (ended bool, err error) {
	if err := s.db.Pool.QueryRow(ctx, endedSince, names, since).Scan(&ended); err != nil {
		return false, fmt.Errorf("look for what ended at %d endpoints: %w", len(names), err)
	}
	return ended, nil
}

// DatabaseTime asks PostgreSQL for the time.
const DatabaseTime = `SELECT tranche_now()`

// Observe returns what was going on at the endpoints whose pace is automatic, since a time that an observation before
// returned as Until; the zero time means the last second. refused are the error codes that tell that a service refuses
// work because it is too much. It reads and locks nothing.
func (s Store) Observe(ctx context.Context, since time.Time, refused []string) (Observation, error) {
	o := Observation{Since: since}
	if err := s.db.Pool.QueryRow(ctx, DatabaseTime).Scan(&o.Until); err != nil {
		return o, fmt.Errorf("observe endpoints: %w", err)
	}
	o.Until = o.Until.Add(-commitLag)
	if since.IsZero() {
		o.Since = o.Until.Add(-time.Second)
	}
	var err error
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
