package health

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/pace"
)

// Metrics is counts, oldest ages and the database's size, as of about one moment. It judges nothing and names no
// run, item or message. Ages are seconds by the database's clock; 0: none exists.
type Metrics struct {
	Runs       []RunMetrics
	Endpoints  []EndpointMetrics
	Collectors []CollectorMetrics
	Nodes      NodeMetrics
	Database   DatabaseMetrics
	Tables     []TableMetrics
}

// RunMetrics is the runs in progress of a namespace with the same state and hold.
type RunMetrics struct {
	Namespace string
	State     string // loading, running, or held
	Hold      string // why they are held; empty: not held
	Count     int64
	Oldest    float64 // age of the run created first
	Overdue   int64   // open ones past their seal deadline
	Late      int64   // those past their done_by
}

// EndpointMetrics is an endpoint with a pace or work, and the work of runs that are not held. Nil: unknown or none.
type EndpointMetrics struct {
	Endpoint  string // or another target of a step, like http:HOST
	Ready     int64  // claimable items
	Scheduled int64  // items that will be retried after a pause
	InFlight  int64
	Requests  int64 // in flight, including chunks of the nodes' own work
	Oldest    float64
	Limit     *int64 // of concurrent requests: set by operators, or else found by nodes
	Open      bool   // the breaker is open
	Rate      *float64
	Chunk     *int64
}

// deadWindow is how long a dead node counts, unless another was started on its host.
const deadWindow = time.Hour

// CollectorMetrics is what waits in a collector that is not being deleted.
type CollectorMetrics struct {
	Collector string
	Oldest    float64 // age of the oldest operation of the key that is flushed next, or is being flushed
	MaxAge    float64 // when operations must be flushed at the latest
	Parked    int64   // operations that wait for an operator; MaxCounted at most
}

// NodeMetrics counts nodes.
type NodeMetrics struct {
	Alive int64
	Dead  int64 // died in the last hour without ending their session, and not replaced on their host
}

// DatabaseMetrics is the load of the database.
type DatabaseMetrics struct {
	Bytes, Connections, MaxConnections int64
	OldestTransaction                  float64 // of those that the role may see
}

// TableMetrics is one of Tranche's tables.
type TableMetrics struct {
	Name string
	Dead int64 // rows that VACUUM has not cleared, as PostgreSQL estimates
}

// statementLimit bounds each statement of a scrape.
const statementLimit = 2 * time.Second

const limitStatements = `SELECT set_config('statement_timeout', $1, true)`

// Metrics reads the metrics in one transaction that locks nothing. Its cost does not grow with the database.
func (s Store) Metrics(ctx context.Context) (*Metrics, error) {
	r := &Metrics{}
	tx, err := s.db.Pool.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it changes nothing
	b := &pgx.Batch{}
	b.Queue(limitStatements, strconv.FormatInt(statementLimit.Milliseconds(), 10))
	queueRows(b, &r.Runs, runMetrics)
	queueRows(b, &r.Endpoints, endpointMetrics)
	queueRows(b, &r.Collectors, collectorMetrics, MaxCounted)
	row(b, []any{&r.Nodes.Alive, &r.Nodes.Dead}, nodeMetrics, deadWindow)
	of := &r.Database
	row(b, []any{&of.Bytes, &of.Connections, &of.MaxConnections, &of.OldestTransaction}, databaseMetrics)
	queueRows(b, &r.Tables, tableMetrics)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return r, nil
}

func row(b *pgx.Batch, into []any, sql string, args ...any) {
	b.Queue(sql, args...).QueryRow(func(found pgx.Row) error { return found.Scan(into...) })
}

const (
	// batchrun_active.
	runMetrics = `
SELECT namespace, CASE WHEN state = 'loading' THEN state WHEN hold IS NULL THEN 'running' ELSE 'held' END,
    coalesce(hold, ''), count(*), extract(epoch FROM tranche_now() - min(created_at))::float8,
    count(*) FILTER (WHERE opened AND sealed_at IS NULL AND seal_deadline <= tranche_now()),
    count(*) FILTER (WHERE done_by <= tranche_now())
FROM batchrun WHERE state IN ('loading', 'running') GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`

	// batchrun_active and, for each run, work_block_ready. work_slice_live finds slices in flight, which limits
	// bound. A block's plane is read only where an item is ready.
	endpointMetrics = `
WITH live AS MATERIALIZED (
    SELECT coalesce(s.endpoint, st.endpoint) AS endpoint,
        count(*) FILTER (WHERE s.state <> 'scheduled') AS requests,
        sum(bit_count(s.remaining)) FILTER (WHERE s.state <> 'scheduled') AS in_flight,
        sum(bit_count(s.remaining)) FILTER (WHERE s.state = 'scheduled') AS scheduled,
        min(s.sent_at) FILTER (WHERE s.state = 'sent' AND s.delivered_at IS NULL) AS untaken
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
FROM (SELECT * FROM endpoint_pace p WHERE ` + pace.Exists + `) p
FULL JOIN endpoint_setting e USING (endpoint)
FULL JOIN live USING (endpoint)
FULL JOIN ready USING (endpoint)
ORDER BY coalesce(ready.items, 0) + coalesce(live.requests, 0) > 0 DESC, endpoint`

	// collector_key_due for each key version and priority; collector_key_flushing and collector_op_parked.
	collectorMetrics = `
SELECT c.name,
    coalesce(extract(epoch FROM tranche_now() - least(d.oldest_at, f.oldest_at)), 0)::float8,
    extract(epoch FROM c.max_age)::float8, p.ops
FROM collector c
CROSS JOIN LATERAL (
    SELECT min(coalesce(first.oldest_at, first.due_at)) AS oldest_at
    FROM generate_series(c.drained_key_version, c.key_version) AS n CROSS JOIN generate_series(0, c.levels) AS p
    CROSS JOIN LATERAL (
        SELECT oldest_at, due_at FROM collector_key k
        WHERE k.collector = c.id AND k.key_version = n AND k.priority = p AND flush IS NULL AND due_at IS NOT NULL
        ORDER BY due_at LIMIT 1) first) d
CROSS JOIN LATERAL (
    SELECT min(oldest_at) AS oldest_at FROM collector_key k WHERE k.collector = c.id AND flush IS NOT NULL) f
CROSS JOIN LATERAL (
    SELECT count(*) AS ops FROM (
        SELECT FROM collector_op o WHERE o.collector = c.id AND parked_at IS NOT NULL ORDER BY seq LIMIT $1) few) p
WHERE c.state <> 'deleting' ORDER BY c.name`

	nodeMetrics = `
SELECT count(*) FILTER (WHERE expires_at > tranche_now()),
    count(*) FILTER (WHERE expires_at <= tranche_now() AND expires_at > tranche_now() - $1::interval
        AND NOT EXISTS (SELECT FROM node_session later WHERE later.id <> n.id AND later.host = n.host
            AND later.started_at > n.heartbeat_at))
FROM node_session n WHERE ended_at IS NULL`

	// pg_stat_database counts all roles; in pg_stat_activity a role sees only times of its transactions.
	databaseMetrics = `
SELECT pg_database_size(current_database()), (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database)::bigint,
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
    coalesce((SELECT extract(epoch FROM clock_timestamp() - min(xact_start)) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()), 0)::float8`

	// Partitions count for their parent.
	tableMetrics = `
SELECT coalesce(c.relname, s.relname)::text, sum(s.n_dead_tup)::bigint
FROM pg_stat_user_tables s LEFT JOIN pg_inherits i ON i.inhrelid = s.relid LEFT JOIN pg_class c ON c.oid = i.inhparent
WHERE s.schemaname = current_schema() GROUP BY 1 ORDER BY 1`
)
