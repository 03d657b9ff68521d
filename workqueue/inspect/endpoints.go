package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// EndpointLoad is the work that running runs have for one endpoint, in items.
type EndpointLoad struct {
	Endpoint  string // or what else is asked, like http:HOST, sql:SOURCE or local:FUNCTION
	Plain     bool   // it is asked in plain requests only, over core NATS
	Runs      int
	Waiting   int64 // for other steps, at barriers, behind canaries, or for their block
	Ready     int64
	InFlight  int64
	Scheduled int64
}

// batchrun_active finds the runs; their blocks come from work_block's primary key, those with ready items from
// work_block_ready, their live slices from work_slice_live.
const endpointLoads = `
SELECT s.endpoint, bool_and(s.kind = 'request'), count(DISTINCT r.id),
    coalesce(sum(r.items - coalesce(o.settled, 0) - coalesce(b.ready, 0) - coalesce(w.in_flight, 0)
        - coalesce(w.scheduled, 0)), 0)::bigint,
    coalesce(sum(b.ready), 0)::bigint, coalesce(sum(w.in_flight), 0)::bigint, coalesce(sum(w.scheduled), 0)::bigint
FROM batchrun r
JOIN run_step s ON s.run_id = r.id
LEFT JOIN LATERAL (
    SELECT sum(bit_count(ready)) AS ready FROM work_block
    WHERE run_id = s.run_id AND step = s.step AND has_ready AND (NOT s.barrier OR s.barrier_passed)
) b ON true
LEFT JOIN LATERAL (
    SELECT sum(bit_count(` + plane.SettledBits + `)) AS settled FROM work_block b
    WHERE b.run_id = s.run_id AND b.step = s.step
) o ON true
LEFT JOIN LATERAL (
    SELECT sum(bit_count(remaining)) FILTER (WHERE state IN ('claimed', 'sent')) AS in_flight,
        sum(bit_count(remaining)) FILTER (WHERE state = 'scheduled') AS scheduled
    FROM work_slice WHERE run_id = s.run_id AND step = s.step AND state IN ('scheduled', 'claimed', 'sent')
) w ON true
WHERE r.state = 'running'
GROUP BY s.endpoint
ORDER BY s.endpoint`

// EndpointLoads returns the work of running runs by endpoint, ordered by name.
func (s Store) EndpointLoads(ctx context.Context) ([]EndpointLoad, error) {
	loads, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[EndpointLoad], endpointLoads)
	if err != nil {
		return nil, fmt.Errorf("view the load of endpoints: %w", err)
	}
	return loads, nil
}

// PaceView is what nodes found out about an endpoint, over all runs.
type PaceView struct {
	Endpoint string `json:"-"`
	Out      int    `json:"requests_out" doc:"of all runs"`
	InFlight int    `json:"in_flight" doc:"requests at once that it takes well, for automatic steps"`

	Rate *float64 `json:"rate,omitempty" doc:"items a second that it takes; absent: it never said too much"`

	Chunk *int `json:"chunk,omitempty" doc:"items in a request that do best; absent: not known yet"`

	ChunkCap      *int                   `json:"chunk_cap,omitempty" doc:"larger requests fail as a whole"`
	ChunkCapUntil *time.Time             `json:"chunk_cap_until,omitempty"`
	Breaker       workqueue.BreakerState `json:"breaker" enum:"closed,open"`
	BreakerReason string                 `json:"breaker_reason,omitempty"`
	BreakerSince  *time.Time             `json:"breaker_since,omitempty" doc:"of its last change"`
	Probes        int                    `json:"probes,omitempty" doc:"sent since the breaker opened"`
	ProbeAt       *time.Time             `json:"probe_at,omitempty" doc:"when the next probe may be sent"`
	Collected     bool                   `json:"-"` // a collector flushes to it
}

// PastPace is one change of the pace of an endpoint, with its reason.
type PastPace struct {
	At     time.Time `json:"at"`
	What   string    `json:"what" enum:"in_flight,rate,chunk,chunk_cap,breaker"`
	Before string    `json:"before,omitempty"`
	After  string    `json:"after,omitempty"`
	Reason string    `json:"reason"`
}

// A cap whose time is over counts no more. Slices that are out are few; work_slice_live finds them.
const paceViews = `
SELECT p.endpoint, coalesce(o.requests, 0), p.in_flight, p.rate, p.chunk,
    CASE WHEN p.chunk_cap_until > tranche_now() THEN p.chunk_cap END,
    CASE WHEN p.chunk_cap_until > tranche_now() THEN p.chunk_cap_until END,
    p.breaker, CASE p.breaker WHEN 'open' THEN p.breaker_reason ELSE '' END, p.breaker_since,
    CASE p.breaker WHEN 'open' THEN p.probes ELSE 0 END, CASE p.breaker WHEN 'open' THEN p.probe_at END,
    EXISTS (SELECT FROM collector c WHERE c.endpoint = p.endpoint)
FROM endpoint_pace p
LEFT JOIN (
    SELECT coalesce(s.endpoint, st.endpoint) AS endpoint, count(*) AS requests
    FROM work_slice s JOIN run_step st USING (run_id, step) WHERE s.state IN ('claimed', 'sent') GROUP BY 1
) o USING (endpoint)
ORDER BY p.endpoint`

// Paces returns what nodes found out about endpoints, ordered by name.
func (s Store) Paces(ctx context.Context) ([]PaceView, error) {
	paces, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[PaceView], paceViews)
	if err != nil {
		return nil, fmt.Errorf("view the pace of endpoints: %w", err)
	}
	return paces, nil
}

// endpoint_change_endpoint, backwards.
const pastPaces = `
SELECT at, what, before, after, reason FROM endpoint_change WHERE endpoint = $1 ORDER BY id DESC LIMIT $2`

// PastPaces returns the last changes of the pace of an endpoint, newest first.
func (s Store) PastPaces(ctx context.Context, endpoint string, limit int) ([]PastPace, error) {
	changes, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[PastPace], pastPaces, endpoint, limit)
	if err != nil {
		return nil, fmt.Errorf("view how the pace of endpoint %s changed: %w", endpoint, err)
	}
	return changes, nil
}

// Ping returns nil when the database answers.
func (s Store) Ping(ctx context.Context) error {
	if err := s.db.Pool.Of(ctx).Ping(ctx); err != nil {
		return fmt.Errorf("ask PostgreSQL: %w", err)
	}
	return nil
}

// TakesWrites is an expression for whether the database takes writes. A transaction that only reads may ask it, too.
const TakesWrites = `NOT pg_is_in_recovery() AND NOT current_setting('default_transaction_read_only')::boolean`

const takesWrites = `SELECT ` + TakesWrites

// Writable reports whether the database takes writes. The error says that it does not answer.
func (s Store) Writable(ctx context.Context) (is bool, err error) {
	if err := s.db.Pool.QueryRow(ctx, takesWrites).Scan(&is); err != nil {
		return false, fmt.Errorf("ask PostgreSQL: %w", err)
	}
	return is, nil
}
