package health

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/pace"
)

// Metrics is how much there is of what, how old the oldest of it is, and how full the database is, at about one moment.
// It judges nothing and names no run, no item and no message. Ages are seconds by the database's clock; 0: there is
// none.
type Metrics struct {
	Runs       []RunMetrics
	Overdue    int64 // open runs that were not sealed in time
	Late       int64 // runs that were not done by their time
	Endpoints  []EndpointMetrics
	Collectors []CollectorMetrics
	Schedules  ScheduleMetrics
	Leftovers  LeftoverMetrics
	Nodes      NodeMetrics
	Database   DatabaseMetrics
	Tables     []TableMetrics
}

// RunMetrics are those in progress that stand alike.
type RunMetrics struct {
	State  string  // loading, running, or held
	Hold   string  // why they are held; empty: they are not
	Count  int64   // of them
	Oldest float64 // age of the one that was made first
}

// EndpointMetrics is an endpoint that something is known of, or that runs in progress have work for, with the work of
// runs that are not held. What is nil is not known, or there is none.
type EndpointMetrics struct {
	Endpoint  string // or what else paces a step, like http:HOST
	Ready     int64  // items that may go out
	Scheduled int64  // items that are to be retried after a pause
	InFlight  int64  // items that are out
	Requests  int64  // that are out, chunks of the node's own work included
	Oldest    float64
	Limit     *int64 // of requests at once: what operators set, or else what nodes have found
	Open      bool   // its breaker
	Rate      *float64
	Chunk     *int64
}

// deadWindow is for how long a node that died is counted, unless one was started again on its host.
const deadWindow = time.Hour

// CollectorMetrics is what waits in a collector that is not being deleted.
type CollectorMetrics struct {
	Collector string
	Oldest    float64 // age of the oldest operation of the key that is to be flushed first, or is being flushed
	MaxAge    float64 // when operations are to be flushed at the latest
	Parked    int64   // operations that wait for someone; MaxCounted at most
}

// ScheduleMetrics counts those that someone should look at.
type ScheduleMetrics struct {
	Overdue   int64   // active ones whose due time has come, and was not taken
	OldestDue float64 // since when, the first of them
	Unstarted int64   // due times that were taken and have no run yet, after a minute
	Failing   int64   // whose last due time has no run: it failed, or was missed
}

// LeftoverMetrics is what waits for someone, or for NATS. MaxCounted each at most.
type LeftoverMetrics struct {
	Letters     int64 // dead letters
	Quarantined int64 // messages of the last day
	Events      int64 // that are not published after a minute
}

// NodeMetrics counts processes.
type NodeMetrics struct {
	Alive int64
	Dead  int64 // in the last hour, without a word, and not started again on their host
}

// DatabaseMetrics says how full it is.
type DatabaseMetrics struct {
	Bytes, Connections, MaxConnections int64
	OldestTransaction                  float64 // of those that the role may see
}

// TableMetrics is one of ours.
type TableMetrics struct {
	Name string
	Dead int64 // rows that VACUUM has not cleared, as PostgreSQL estimates
}

// statementLimit bounds what each statement of a reading may take.
const statementLimit = 2 * time.Second

// limitStatements bounds them in the transaction.
const limitStatements = `SELECT set_config('statement_timeout', $1, true)`

// Metrics reads what metrics show, in one transaction that locks nothing. It is cheap whatever there is: runs under
// way, live slices and blocks with ready items are found by their partial indexes, letters are counted up to a number,
// and no finished run is looked at.
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
	row(b, []any{&r.Overdue, &r.Late}, overdueRuns)
	queueRows(b, &r.Endpoints, endpointMetrics)
	queueRows(b, &r.Collectors, collectorMetrics, MaxCounted)
	d, l := &r.Schedules, &r.Leftovers
	row(b, []any{&d.Overdue, &d.OldestDue, &d.Unstarted, &d.Failing}, scheduleMetrics)
	row(b, []any{&l.Letters, &l.Quarantined, &l.Events}, leftoverMetrics, MaxCounted)
	row(b, []any{&r.Nodes.Alive, &r.Nodes.Dead}, nodeMetrics, deadWindow)
	of := &r.Database
	row(b, []any{&of.Bytes, &of.Connections, &of.MaxConnections, &of.OldestTransaction}, databaseMetrics)
	queueRows(b, &r.Tables, tableMetrics)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return r, nil
}

// row adds a query of one row.
func row(b *pgx.Batch, into []any, sql string, args ...any) {
	b.Queue(sql, args...).QueryRow(func(found pgx.Row) error { return found.Scan(into...) })
}

const (
	// batchrun_active.
	runMetrics = `
SELECT CASE WHEN state = 'loading' THEN state WHEN hold IS NULL THEN 'running' ELSE 'held' END, coalesce(hold, ''),
    count(*), extract(epoch FROM tranche_now() - min(created_at))::float8
FROM batchrun WHERE state IN ('loading', 'running') GROUP BY 1, 2 ORDER BY 1, 2`

	// batchrun_active.
	overdueRuns = `
SELECT count(*) FILTER (WHERE opened AND sealed_at IS NULL AND seal_deadline <= tranche_now()),
    count(*) FILTER (WHERE done_by <= tranche_now())
FROM batchrun WHERE state = 'running'`

	// endpointMetrics reads batchrun_active and, for each of the runs, work_block_ready; what is out is found by
	// work_slice_live and bounded by the limits in flight. A block's plane is read only where something is ready.
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

	// Collectors are few; collector_key_due, once for each key version and priority that there may be,
	// collector_key_flushing and collector_op_parked.
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

	// schedule_due, schedule_occurrence_waiting, schedule_occurrence_run; schedules are few, and the last fire of each is
	// found by the primary key, backwards.
	scheduleMetrics = `
SELECT s.overdue, s.oldest, (
        SELECT count(*) FROM schedule_occurrence f JOIN schedule s ON s.name = f.schedule
        WHERE f.state IN ('due', 'starting') AND s.state = 'active'
            AND f.start_at < tranche_now() - interval '1 min'),
    (SELECT count(*) FROM schedule s CROSS JOIN LATERAL (
        SELECT state FROM schedule_occurrence f
        WHERE f.schedule = s.name AND f.ended_at IS NOT NULL ORDER BY f.due_at DESC LIMIT 1) f
     WHERE s.deleted_at IS NULL AND f.state IN ('failed', 'missed'))
FROM (
    SELECT count(*) AS overdue, coalesce(extract(epoch FROM tranche_now() - min(next_due)), 0)::float8 AS oldest
    FROM schedule WHERE state = 'active' AND deleted_at IS NULL AND next_due < tranche_now()) s`

	// dead_letter_state, the end of quarantine's primary key, run_event_unpublished.
	leftoverMetrics = `
SELECT (SELECT count(*) FROM (SELECT FROM dead_letter WHERE state = 'waiting' LIMIT $1) few),
    (SELECT count(*) FROM (SELECT at FROM quarantine ORDER BY id DESC LIMIT $1) few
     WHERE at > tranche_now() - interval '1 day'),
    (SELECT count(*) FROM (
        SELECT FROM run_event WHERE published_at IS NULL AND at < tranche_now() - interval '1 min' LIMIT $1) few)`

	// Sessions are few.
	nodeMetrics = `
SELECT count(*) FILTER (WHERE expires_at > tranche_now()),
    count(*) FILTER (WHERE expires_at <= tranche_now() AND expires_at > tranche_now() - $1::interval
        AND NOT EXISTS (SELECT FROM node_session later WHERE later.id <> n.id AND later.host = n.host
            AND later.started_at > n.heartbeat_at))
FROM node_session n WHERE ended_at IS NULL`

	// pg_stat_database counts for every role; of pg_stat_activity a role sees the times of its own transactions.
	databaseMetrics = `
SELECT pg_database_size(current_database()), (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database)::bigint,
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
    coalesce((SELECT extract(epoch FROM clock_timestamp() - min(xact_start)) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()), 0)::float8`

	// Partitions count as the whole.
	tableMetrics = `
SELECT coalesce(c.relname, s.relname)::text, sum(s.n_dead_tup)::bigint
FROM pg_stat_user_tables s LEFT JOIN pg_inherits i ON i.inhrelid = s.relid LEFT JOIN pg_class c ON c.oid = i.inhparent
WHERE s.schemaname = current_schema() GROUP BY 1 ORDER BY 1`
)
