package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// nodesFor is the live sessions; for a local function, those that report it, or have not reported their functions.
const nodesFor = `
SELECT coalesce(array_agg(format('node %s (pid %s)', host, pid) ORDER BY started_at, id), '{}') FROM node_session
WHERE ended_at IS NULL AND expires_at > tranche_now()
    AND ($1 = '' OR stats -> 'locals' IS NULL OR stats -> 'locals' ? $1)`

// NodesFor names the live nodes that can do the work of a target that is not an endpoint. Every node can call HTTP
// services and sources; local functions exist only in programs that bring them.
func (s Store) NodesFor(ctx context.Context, key string) (nodes []string, err error) {
	function := ""
	if kind, target := workqueue.TargetKind(key); kind == workqueue.KindLocal {
		function = target
	}
	err = s.db.Pool.QueryRow(ctx, nodesFor, function).Scan(&nodes)
	return nodes, pg.Wrap(err, "find nodes that do %s", key)
}

// What a node's heartbeat reports. The node reports durations, since its clock may differ from the database's.
const (
	StalledSince = `heartbeat_at - make_interval(secs => (stats -> 'stalled' ->> 'seconds')::float8)`
	StalledWhy   = `coalesce(stats -> 'stalled' ->> 'why', '')`
	Refused      = `coalesce(stats ->> 'refused', '')`
)

// NodeView is a node's session and what it holds.
type NodeView struct {
	Session     workqueue.SessionID `json:"session"`
	Host        string              `json:"host"`
	PID         int                 `json:"pid"`
	Version     string              `json:"version"`
	StartedAt   time.Time           `json:"started_at"`
	HeartbeatAt time.Time           `json:"heartbeat_at"`
	ExpiresAt   time.Time           `json:"expires_at" doc:"when it counts as dead without another heartbeat"`
	EndedAt     *time.Time          `json:"ended_at,omitempty" doc:"absent unless it ended in good order"`
	State       string              `json:"state" enum:"live,late,dead,ended" doc:"late: no heartbeat for three fifths of --session-ttl"`
	Leader      bool                `json:"leader"`
	Slices      NodeSlices          `json:"slices"`
	Items       int64               `json:"items" doc:"in its slices"`
	Runs        []NodeRun           `json:"runs" doc:"that its slices are of, up to 20, those with most slices first"`
	Stats       json.RawMessage     `json:"stats" doc:"its counters since its start, as it said with its last heartbeat"`
	NATS        string              `json:"nats,omitempty" doc:"what keeps it from NATS, as it said; absent: nothing"`
}

// NodeSlices counts the slices of a node.
type NodeSlices struct {
	Claimed int64 `json:"claimed" doc:"that it is publishing or working on; they are reissued when it dies"`
	Sent    int64 `json:"sent" doc:"that it has published; any node records their replies"`
}

// NodeRun is a run that a node holds slices of.
type NodeRun struct {
	ID     workqueue.RunID `json:"id"`
	Name   string          `json:"name,omitempty"`
	Plan   string          `json:"plan"`
	Slices int64           `json:"slices"`
}

// Nodes is the nodes and the leader.
type Nodes struct {
	Leader      *LeaderView      `json:"leader" doc:"null while no one leads"`
	LeaderTasks []LeaderTaskView `json:"leader_tasks" doc:"periodic work of the leader, as of its last heartbeat"`
	Nodes       []NodeView       `json:"nodes" doc:"live nodes, then up to 50 that are gone, newest first"`
	At          time.Time        `json:"at" doc:"the database's clock when it looked"`
	// ReadOnly is why live nodes appear dead: their heartbeats cannot be written.
	ReadOnly bool `json:"database_read_only,omitempty" doc:"PostgreSQL is read-only: nodes cannot send heartbeats"`
}

const (
	maxGoneNodes = 50
	maxNodeRuns  = 20
)

const (
	currentLeader = HealthLeader + ` AND expires_at > tranche_now()`

	// work_slice_live gives what all sessions hold, once.
	nodeViews = `
WITH held AS MATERIALIZED (
    SELECT w.session_id, w.run_id, count(*) AS slices, count(*) FILTER (WHERE w.state = 'claimed') AS claimed,
        sum(bit_count(w.remaining)) AS items
    FROM work_slice w WHERE w.state IN ('claimed', 'sent') AND w.session_id IS NOT NULL GROUP BY 1, 2),
sums AS (
    SELECT session_id, sum(slices)::bigint AS slices, sum(claimed)::bigint AS claimed, sum(items)::bigint AS items
    FROM held GROUP BY 1),
known AS (
    SELECT n.*, row_number() OVER (PARTITION BY n.ended_at IS NULL AND n.expires_at > tranche_now()
        ORDER BY n.started_at DESC, n.id) AS nth, n.ended_at IS NULL AND n.expires_at > tranche_now() AS alive
    FROM node_session n)
SELECT k.id, k.host, k.pid, k.version, k.started_at, k.heartbeat_at, k.expires_at, k.ended_at,
    CASE WHEN k.ended_at IS NOT NULL THEN 'ended' WHEN NOT k.alive THEN 'dead'
        WHEN tranche_now() > k.heartbeat_at + 0.6 * (k.expires_at - k.heartbeat_at) THEN 'late' ELSE 'live' END,
    k.id = coalesce((SELECT session_id FROM leader WHERE name = $2 AND expires_at > tranche_now()),
        '00000000-0000-0000-0000-000000000000'),
    coalesce(s.claimed, 0), coalesce(s.slices - s.claimed, 0), coalesce(s.items, 0), k.stats,
    coalesce((SELECT jsonb_agg(jsonb_build_object('id', h.run_id, 'name', coalesce(r.name, ''), 'plan', r.plan,
            'slices', h.slices) ORDER BY h.slices DESC, h.run_id)
        FROM (SELECT * FROM held WHERE session_id = k.id ORDER BY slices DESC, run_id LIMIT $3) h
        JOIN batchrun r ON r.id = h.run_id), '[]'),
    CASE WHEN NOT k.alive THEN '' WHEN k.stats ? 'refused' THEN k.stats ->> 'refused'
        WHEN k.stats -> 'nats' = 'false' THEN 'it cannot reach NATS'
        WHEN k.stats ? 'stalled' THEN 'JetStream does not answer it' ELSE '' END
FROM known k LEFT JOIN sums s ON s.session_id = k.id
WHERE k.alive OR k.nth <= $1 OR s.session_id IS NOT NULL AND s.claimed > 0
ORDER BY k.alive DESC, k.started_at DESC, k.id`

	databaseNow = `SELECT tranche_now(), NOT (` + TakesWrites + `)`
)

// Nodes returns the live nodes and those that ended lately.
func (s Store) Nodes(ctx context.Context) (Nodes, error) {
	out := Nodes{LeaderTasks: []LeaderTaskView{}}
	b := &pgx.Batch{}
	b.Queue(nodeViews, maxGoneNodes, ledger.LeaseName, maxNodeRuns).Query(func(rows pgx.Rows) (err error) {
		out.Nodes, err = pgx.CollectRows(rows, scanNode)
		return err
	})
	b.Queue(currentLeader, ledger.LeaseName).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[LeaderView])
		if len(found) > 0 {
			out.Leader = &found[0]
		}
		return err
	})
	b.Queue(databaseNow).QueryRow(func(row pgx.Row) error { return row.Scan(&out.At, &out.ReadOnly) })
	if err := s.db.Pool.SendBatch(ctx, b).Close(); err != nil {
		return Nodes{}, fmt.Errorf("list the nodes: %w", err)
	}
	for i := range out.Nodes {
		if n := &out.Nodes[i]; n.Leader {
			out.LeaderTasks = append(out.LeaderTasks, dutiesOf(n)...)
		}
	}
	return out, nil
}

func scanNode(row pgx.CollectableRow) (n NodeView, err error) {
	err = row.Scan(&n.Session, &n.Host, &n.PID, &n.Version, &n.StartedAt, &n.HeartbeatAt, &n.ExpiresAt, &n.EndedAt,
		&n.State, &n.Leader, &n.Slices.Claimed, &n.Slices.Sent, &n.Items, &n.Stats, &n.Runs, &n.NATS)
	return n, err
}

// LeaderView is the lease of the current or last leader.
type LeaderView struct {
	Session   workqueue.SessionID `json:"session"`
	Epoch     int64               `json:"epoch" doc:"increases with every change of holder"`
	Since     time.Time           `json:"since" doc:"when it began to lead"`
	ExpiresAt time.Time           `json:"expires_at"`
}

// HealthLeader reads the current or last leader, if any.
const HealthLeader = `SELECT session_id, epoch, since, expires_at FROM leader WHERE name = $1`

// TaskPulse is what the leader reports of a leader task with each heartbeat. Times are ages.
type TaskPulse struct {
	Name      string        `json:"name"`
	Runs      int64         `json:"runs"`
	Failures  int64         `json:"failures"`
	Running   time.Duration `json:"running"`    // for how long; 0: not running
	Ended     time.Duration `json:"ended"`      // age of the end of the last run; -1: none
	Took      time.Duration `json:"took"`       // duration of the last run
	Failing   bool          `json:"failing"`    // the last run failed
	LastError string        `json:"last_error"` // of the last run that failed
	Failed    time.Duration `json:"failed"`     // age of that run; -1: none
	Succeeded time.Duration `json:"-"`          // age of the last success; -1: none
}

// LeaderTaskView is a leader task, since its node became the leader.
type LeaderTaskView struct {
	Name      string     `json:"name"`
	Runs      int64      `json:"runs"`
	Failures  int64      `json:"failures" doc:"of those runs"`
	Running   float64    `json:"running,omitempty" doc:"seconds for which it runs; absent when it does not"`
	EndedAt   *time.Time `json:"ended_at,omitempty" doc:"when it ran last; absent when it has not yet"`
	Took      float64    `json:"took" doc:"seconds that its last run took"`
	Failing   bool       `json:"failing" doc:"its last run failed"`
	LastError string     `json:"last_error,omitempty" doc:"of the last run that failed"`
	FailedAt  *time.Time `json:"failed_at,omitempty" doc:"when that was"`
}

// dutiesOf reads the leader tasks in a heartbeat. Another version's heartbeat may have another form.
func dutiesOf(n *NodeView) []LeaderTaskView {
	var said struct {
		LeaderTasks []TaskPulse `json:"leader_tasks"`
	}
	if json.Unmarshal(n.Stats, &said) != nil {
		return nil
	}
	out := make([]LeaderTaskView, len(said.LeaderTasks))
	for i, d := range said.LeaderTasks {
		out[i] = LeaderTaskView{Name: d.Name, Runs: d.Runs, Failures: d.Failures, Running: d.Running.Seconds(),
			EndedAt: n.before(d.Ended), Took: d.Took.Seconds(), Failing: d.Failing, LastError: d.LastError,
			FailedAt: n.before(d.Failed)}
	}
	return out
}

// before is the node's heartbeat time minus an age, or nil for a negative age.
func (n *NodeView) before(age time.Duration) *time.Time {
	if age < 0 {
		return nil
	}
	at := n.HeartbeatAt.Add(-age)
	return &at
}

// EndpointLoad is the work of running runs for one endpoint, in items.
type EndpointLoad struct {
	Endpoint  string // or another target, like http:HOST, sql:SOURCE or local:FUNCTION
	Plain     bool   // it is called only by plain requests over core NATS
	Runs      int
	Waiting   int64 // for other steps, at barriers, behind canaries, or for their block
	Ready     int64
	InFlight  int64
	Scheduled int64
}

// batchrun_active, work_block's primary key, work_block_ready, and work_slice_live for live slices.
const endpointLoads = `
SELECT s.endpoint, bool_and(s.kind = 'direct'), count(DISTINCT r.id),
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
    SELECT sum(` + plane.SettledCount + `) AS settled FROM work_block b
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
	return loads, pg.Wrap(err, "view the load of endpoints")
}

// PaceView is what nodes found out about an endpoint, over all runs.
type PaceView struct {
	Endpoint string `json:"-"`
	Out      int    `json:"requests_out" doc:"of all runs"`
	InFlight int    `json:"in_flight" doc:"requests in flight that it handles well, for automatic steps"`

	Rate *float64 `json:"rate,omitempty" doc:"items per second; absent: it never refused for rate"`

	Chunk *int `json:"chunk,omitempty" doc:"items in a request that do best; absent: not known yet"`

	ChunkCap      *int                   `json:"chunk_cap,omitempty" doc:"larger requests fail entirely"`
	ChunkCapUntil *time.Time             `json:"chunk_cap_until,omitempty"`
	Breaker       workqueue.BreakerState `json:"breaker" enum:"closed,open"`
	BreakerReason string                 `json:"breaker_reason,omitempty"`
	BreakerSince  *time.Time             `json:"breaker_since,omitempty" doc:"of its last change"`
	Probes        int                    `json:"probes,omitempty" doc:"sent since the breaker opened"`
	ProbeAt       *time.Time             `json:"probe_at,omitempty" doc:"when the next probe may be sent"`
	Collected     bool                   `json:"-"`
}

// PastPace is one change of an endpoint's pace.
type PastPace struct {
	At     time.Time `json:"at"`
	What   string    `json:"what" enum:"in_flight,rate,chunk,chunk_cap,breaker,cap,share"`
	Before string    `json:"before,omitempty"`
	After  string    `json:"after,omitempty"`
	Reason string    `json:"reason"`
}

// An expired cap does not count. work_slice_live finds the slices in flight, which are few.
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
	return paces, pg.Wrap(err, "view the pace of endpoints")
}

// endpoint_change_endpoint, backwards.
const pastPaces = `
SELECT at, what, before, after, reason FROM endpoint_change WHERE endpoint = $1 ORDER BY id DESC LIMIT $2`

// PastPaces returns the last changes of an endpoint's pace, newest first.
func (s Store) PastPaces(ctx context.Context, endpoint string, limit int) ([]PastPace, error) {
	changes, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[PastPace], pastPaces, endpoint, limit)
	return changes, pg.Wrap(err, "view how the pace of endpoint %s changed", endpoint)
}

// VersionStats is how an endpoint has handled its newest requests, for comparison with another version of it.
type VersionStats struct {
	Endpoint  string      `json:"endpoint"`
	Requests  int64       `json:"requests" doc:"that ended: the newest 1,000 since the comparison began"`
	Items     int64       `json:"items" doc:"in them; an item counts as often as it was requested"`
	Failed    int64       `json:"failed" doc:"of those, answered with an error, whether or not they were retried"`
	Retried   int64       `json:"retried" doc:"of the failed ones, those that were retried"`
	Codes     []CodeCount `json:"codes" doc:"of the errors, the five most frequent"`
	Timeouts  int64       `json:"timeouts" doc:"requests without an answer before their deadline"`
	P50Millis float64     `json:"p50_millis" doc:"time for one item: half of the answered requests took no longer"`
	P95Millis float64     `json:"p95_millis"`
}

// CodeCount is the items with one error code.
type CodeCount struct {
	Code  string `json:"code"`
	Items int64  `json:"items"`
}

const statsOf = 1000

// versionStats is an endpoint's newest ended slices since a time, by work_slice_ended, and their errors. Those of
// single items are searched only among the slice's ordinals; failed requests have one error for all. Other ends, like
// a lost node, say nothing.
const versionStats = `
WITH ended AS MATERIALIZED (
    SELECT s.run_id, s.step, s.id, s.state, s.error_code, s.error_retry, bit_count(s.mask) AS items, s.took,
           s.block * 8192 + position(B'1' IN s.mask) - 1 AS first,
           s.block * 8192 + length(rtrim(s.mask::text, '0')) - 1 AS last
    FROM work_slice s
    WHERE s.endpoint = $1 AND s.ended_at > $2
      AND (s.state = 'recorded' OR s.state = 'expired' AND s.error_code IN ('deadline', 'too_many_deliveries'))
    ORDER BY s.ended_at DESC LIMIT $3),
errors AS MATERIALIZED (
    SELECT error_code, items, error_retry AS retried FROM ended WHERE state = 'recorded' AND error_code IS NOT NULL
    UNION ALL
    SELECT p.error_code, 1, false FROM ended e JOIN work_result p ON p.run_id = e.run_id AND p.step = e.step
        AND p.ordinal BETWEEN e.first AND e.last AND p.slice_id = e.id
    WHERE e.error_code IS NULL AND p.error_code IS NOT NULL
    UNION ALL
    SELECT w.error_code, 1, true FROM ended e JOIN work_error w ON w.run_id = e.run_id AND w.step = e.step
        AND w.ordinal BETWEEN e.first AND e.last AND w.slice_id = e.id
    WHERE e.error_code IS NULL)
SELECT $1::text, count(*), coalesce(sum(items), 0)::bigint,
       (SELECT coalesce(sum(items), 0)::bigint FROM errors),
       (SELECT coalesce(sum(items) FILTER (WHERE retried), 0)::bigint FROM errors),
       (SELECT coalesce(json_agg(c), '[]') FROM (
           SELECT error_code AS code, sum(items) AS items FROM errors GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5) c),
       count(*) FILTER (WHERE state = 'expired'),
       coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY 1000 * took / items) FILTER (WHERE state = 'recorded'), 0),
       coalesce(percentile_cont(0.95) WITHIN GROUP (ORDER BY 1000 * took / items) FILTER (WHERE state = 'recorded'), 0)
FROM ended`

// VersionStats returns how an endpoint has handled requests since a time.
func (s Store) VersionStats(ctx context.Context, endpoint string, since time.Time) (VersionStats, error) {
	stats, err := pg.One(ctx, s.db.Pool, pgx.RowToStructByPos[VersionStats], versionStats, endpoint, since, statsOf)
	return stats, pg.Wrap(err, "read how endpoint %s handles requests", endpoint)
}

// Ping returns nil if the database answers.
func (s Store) Ping(ctx context.Context) error {
	err := s.db.Pool.Of(ctx).Ping(ctx)
	return pg.Wrap(err, "ask PostgreSQL")
}

// TakesWrites is an expression for whether the database takes writes. It also works in a read-only transaction.
const TakesWrites = `NOT pg_is_in_recovery() AND NOT current_setting('default_transaction_read_only')::boolean`

// AwaitsStandby is an expression for whether commits wait for a missing synchronous standby. It sees only the role's
// own commits; most stop before their wait is long. Without pg_read_all_stats, any standby may be synchronous.
const AwaitsStandby = `EXISTS (
    SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'
        AND (clock_timestamp() - query_start > interval '3 s' OR NOT EXISTS (
            SELECT FROM pg_stat_replication WHERE coalesce(sync_state, 'sync') IN ('sync', 'quorum'))))`

const takesWrites = `SELECT ` + TakesWrites + `, ` + AwaitsStandby

// Writable reports whether the database takes writes, and whether commits wait for a standby.
func (s Store) Writable(ctx context.Context) (is, waits bool, err error) {
	err = s.db.Pool.QueryRow(ctx, takesWrites).Scan(&is, &waits)
	return is, waits, pg.Wrap(err, "ask PostgreSQL")
}
