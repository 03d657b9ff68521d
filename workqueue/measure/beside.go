package measure

import "time"

// MaxCounted is how far operations, letters and messages are counted.
const MaxCounted = 10_000

// deadWindow is for how long a node that died is counted, unless one was started again on its host.
const deadWindow = time.Hour

// Collector is what waits in a collector that is not being deleted.
type Collector struct {
	Collector string
	Oldest    float64 // age of the oldest operation of the key that is to be flushed first, or is being flushed
	MaxAge    float64 // when operations are to be flushed at the latest
	Parked    int64   // operations that wait for somebody; MaxCounted at the most
}

// Schedules counts those that somebody should look at.
type Schedules struct {
	Overdue   int64   // active ones whose due time has come, and was not taken
	OldestDue float64 // since when, the first of them
	Unstarted int64   // due times that were taken and have no run yet, after a minute
	Failing   int64   // whose last due time has no run: it failed, or was missed
	Late      int64   // runs that go on after the end of their window
}

// Leftovers is what waits for somebody, or for NATS. MaxCounted each at the most.
type Leftovers struct {
	Letters     int64 // dead letters
	Quarantined int64 // messages of the last day
	Events      int64 // that are not published after a minute
}

// Nodes counts processes.
type Nodes struct {
	Alive int64
	Dead  int64 // in the last hour, without a word, and not started again on their host
}

// Database says how full it is.
type Database struct {
	Bytes, Connections, MaxConnections int64
	OldestTransaction                  float64 // of those that the role may see
}

// Table is one of ours.
type Table struct {
	Name string
	Dead int64 // rows that VACUUM has not cleared, as PostgreSQL estimates
}

const (
	// Collectors are few; collector_key_due, once for each numbering and priority that there may be,
	// collector_key_flushing and collector_op_parked.
	collectors = `
SELECT c.name,
    coalesce(extract(epoch FROM tranche_now() - least(d.oldest_at, f.oldest_at)), 0)::float8,
    extract(epoch FROM c.max_age)::float8, p.ops
FROM collector c
CROSS JOIN LATERAL (
    SELECT min(coalesce(first.oldest_at, first.due_at)) AS oldest_at
    FROM generate_series(c.settled, c.numbering) AS n CROSS JOIN generate_series(0, c.levels) AS p
    CROSS JOIN LATERAL (
        SELECT oldest_at, due_at FROM collector_key k
        WHERE k.collector = c.id AND k.numbering = n AND k.priority = p AND flush IS NULL AND due_at IS NOT NULL
        ORDER BY due_at LIMIT 1) first) d
CROSS JOIN LATERAL (
    SELECT min(oldest_at) AS oldest_at FROM collector_key k WHERE k.collector = c.id AND flush IS NOT NULL) f
CROSS JOIN LATERAL (
    SELECT count(*) AS ops FROM (
        SELECT FROM collector_op o WHERE o.collector = c.id AND parked_at IS NOT NULL ORDER BY seq LIMIT $1) few) p
WHERE c.state <> 'deleting' ORDER BY c.name`

	// schedule_due, schedule_fire_waiting, schedule_fire_run; schedules are few, and the last fire of each is found by
	// the primary key, backwards.
	schedules = `
SELECT s.overdue, s.oldest, (
        SELECT count(*) FROM schedule_fire f JOIN schedule s ON s.name = f.schedule
        WHERE f.state IN ('due', 'starting') AND s.state = 'active'
            AND f.start_at < tranche_now() - interval '1 min'),
    (SELECT count(*) FROM schedule s CROSS JOIN LATERAL (
        SELECT state FROM schedule_fire f
        WHERE f.schedule = s.name AND f.ended_at IS NOT NULL ORDER BY f.due_at DESC LIMIT 1) f
     WHERE s.deleted_at IS NULL AND f.state IN ('failed', 'missed')),
    (SELECT count(*) FROM batchrun r JOIN schedule_fire f ON f.run_id = r.id
     WHERE r.state IN ('loading', 'running') AND f.state = 'started' AND f.late <> '')
FROM (
    SELECT count(*) AS overdue, coalesce(extract(epoch FROM tranche_now() - min(next_due)), 0)::float8 AS oldest
    FROM schedule WHERE state = 'active' AND deleted_at IS NULL AND next_due < tranche_now()) s`

	// dead_letter_state, the end of quarantine's primary key, run_event_unpublished.
	leftovers = `
SELECT (SELECT count(*) FROM (SELECT FROM dead_letter WHERE state = 'waiting' LIMIT $1) few),
    (SELECT count(*) FROM (SELECT at FROM quarantine ORDER BY id DESC LIMIT $1) few
     WHERE at > tranche_now() - interval '1 day'),
    (SELECT count(*) FROM (
        SELECT FROM run_event WHERE published_at IS NULL AND at < tranche_now() - interval '1 min' LIMIT $1) few)`

	// Sessions are few.
	nodes = `
SELECT count(*) FILTER (WHERE expires_at > tranche_now()),
    count(*) FILTER (WHERE expires_at <= tranche_now() AND expires_at > tranche_now() - $1::interval
        AND NOT EXISTS (SELECT FROM node_session later WHERE later.id <> n.id AND later.host = n.host
            AND later.started_at > n.heartbeat_at))
FROM node_session n WHERE ended_at IS NULL`

	// pg_stat_database counts for every role; of pg_stat_activity a role sees the times of its own transactions.
	size = `
SELECT pg_database_size(current_database()), (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database)::bigint,
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
    coalesce((SELECT extract(epoch FROM clock_timestamp() - min(xact_start)) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()), 0)::float8`

	// Partitions count as the whole.
	tables = `
SELECT coalesce(c.relname, s.relname)::text, sum(s.n_dead_tup)::bigint
FROM pg_stat_user_tables s LEFT JOIN pg_inherits i ON i.inhrelid = s.relid LEFT JOIN pg_class c ON c.oid = i.inhparent
WHERE s.schemaname = current_schema() GROUP BY 1 ORDER BY 1`
)
