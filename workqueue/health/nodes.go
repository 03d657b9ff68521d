package health

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/schedule"
)

// NodeHealth is a node that is there, or that died lately and was not started again on its host.
type NodeHealth struct {
	Session      workqueue.SessionID
	Host         string
	PID          int
	StartedAt    time.Time
	BeatAt       time.Time
	ExpiresAt    time.Time
	Alive        bool
	Away         bool       // it said that it cannot reach NATS
	StalledSince *time.Time // it said that it does, and that the streams do not answer; nil: they do
	StalledWhy   string
	Refused      string    // what it said that NATS refuses it; empty: nothing
	Locals       *[]string // the local functions that it said it has; nil: it has not said
	Slices       int64     // claimed and not sent
	Items        int64     // in them
	Loads        int64     // runs that it was loading
}

// Name is the node's for people.
func (n *NodeHealth) Name() string { return fmt.Sprintf("node %s (pid %d)", n.Host, n.PID) }

// DatabaseLoad is how full the database is.
type DatabaseLoad struct {
	Connections    int64
	MaxConnections int64
	Bytes          int64 // of this database
	ReadOnly       bool  // it takes no writes
}

const (

	// Sessions are few; what they hold says work_slice_live, which runs they load batchrun_active.
	healthNodes = `
WITH held AS MATERIALIZED (
    SELECT session_id, count(*) AS slices, sum(bit_count(remaining))::bigint AS items
    FROM work_slice WHERE state = 'claimed' AND session_id IS NOT NULL GROUP BY 1)
SELECT n.id, n.host, n.pid, n.started_at, n.heartbeat_at, n.expires_at, n.expires_at > tranche_now(),
    coalesce(n.stats -> 'nats' = 'false', false), ` + inspect.StalledSince + `, ` + inspect.StalledWhy + `,
    ` + inspect.Refused + `,
    CASE jsonb_typeof(n.stats -> 'locals')
        WHEN 'array' THEN ARRAY(SELECT jsonb_array_elements_text(n.stats -> 'locals'))
        WHEN 'null' THEN '{}'::text[] END,
    coalesce(h.slices, 0), coalesce(h.items, 0),
    (SELECT count(*) FROM batchrun r WHERE r.state = 'loading' AND r.loader_session = n.id)
FROM node_session n LEFT JOIN held h ON h.session_id = n.id
WHERE n.ended_at IS NULL AND (n.expires_at > tranche_now() OR h.session_id IS NOT NULL
    OR n.expires_at > tranche_now() - $1::interval
        AND NOT EXISTS (SELECT FROM node_session later WHERE later.id <> n.id AND later.host = n.host
            AND later.started_at > n.heartbeat_at))
ORDER BY n.started_at, n.id`

	// pg_stat_database counts for every role; pg_stat_activity would not tell all of them.
	healthDatabase = `
SELECT (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database)::bigint,
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
    pg_database_size(current_database()), tranche_now(), NOT (` + inspect.TakesWrites + `)`

	// A few rows.
	healthKept = `SELECT kind, subject, since, seen_at, said FROM health_condition`
)

func (f *Facts) queueNodes(b *pgx.Batch, l Limits) {
	b.Queue(inspect.HealthLeader, ledger.LeaseName).QueryRow(func(row pgx.Row) error {
		var leader inspect.LeaderView
		err := row.Scan(&leader.Session, &leader.Epoch, &leader.Since, &leader.ExpiresAt)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err == nil:
			f.Leader = &leader
		}
		return err
	})
	queueRows(b, &f.Nodes, healthNodes, l.Dead)
}

func (f *Facts) queueDatabase(b *pgx.Batch, _ Limits) {
	queueRows(b, &f.Kept, healthKept)
	queueRows(b, &f.Marks, healthMarks)
	b.Queue(healthDatabase).QueryRow(func(row pgx.Row) error {
		d := &f.Database
		return row.Scan(&d.Connections, &d.MaxConnections, &d.Bytes, &f.At, &d.ReadOnly)
	})
}

// FailedSchedule is a schedule whose last due time has no run: it failed, or was missed.
type FailedSchedule struct {
	Schedule string
	State    schedule.FireState // FireFailed or FireMissed
	Due      time.Time
	Reason   string
	Since    time.Time
}

// StuckSchedule is a schedule whose due time has come and is not taken, or whose run should have been started.
type StuckSchedule struct {
	Schedule string
	Due      time.Time
	Taken    bool       // it waits to be started
	Reason   string     // why, as far as the leader has said
	Loading  *time.Time // nil: its items are not being loaded
	Since    time.Time
}

// LateRun is a run of a schedule that has not ended by the end of its window, and still goes on.
type LateRun struct {
	Schedule string
	Run      workqueue.RunID
	Did      string // what was done about it
	DoneBy   time.Time
}

const (
	// schedulePatience is how long after its time a due time may be taken: a new leader is there within seconds.
	schedulePatience = time.Minute
	// startPatience is how long a run may be tried to be started before anybody is told.
	startPatience = 5 * time.Minute
)

const (
	// Schedules are few; the last fire of each by the primary key, backwards.
	healthScheduleFailed = `
SELECT s.name, f.state, f.due_at, f.reason, f.ended_at
FROM schedule s CROSS JOIN LATERAL (
    SELECT * FROM schedule_fire f WHERE f.schedule = s.name AND f.ended_at IS NOT NULL ORDER BY f.due_at DESC LIMIT 1) f
WHERE s.deleted_at IS NULL AND f.state IN ('failed', 'missed')
ORDER BY f.ended_at DESC, s.name LIMIT $1`

	// schedule_due and schedule_fire_waiting. What is queued waits for a run, about which others tell. A first attempt may
	// begin long after the due time: when a window opens, or when it is its turn.
	healthScheduleStuck = `
SELECT name, next_due, false, '', NULL::timestamptz, next_due FROM schedule
WHERE state = 'active' AND deleted_at IS NULL AND next_due < tranche_now() - $1::interval
UNION ALL
SELECT f.schedule, f.due_at, true, f.reason, CASE f.state WHEN 'starting' THEN f.began_at END,
    greatest(f.created_at, f.due_at)
FROM schedule_fire f JOIN schedule s ON s.name = f.schedule
WHERE f.state IN ('due', 'starting') AND s.state = 'active'
  AND CASE WHEN f.state = 'starting' AND f.attempts = 1 THEN f.began_at
           WHEN f.attempts > 0 THEN f.created_at ELSE f.start_at END < tranche_now() - $2::interval
ORDER BY 6, 1 LIMIT $3`

	// batchrun_active and schedule_fire_run.
	healthScheduleLate = `
SELECT f.schedule, r.id, f.late, f.done_by
FROM batchrun r JOIN schedule_fire f ON f.run_id = r.id
WHERE r.state IN ('loading', 'running') AND f.state = 'started' AND f.late <> ''
ORDER BY f.done_by, r.id LIMIT $1`
)

func (f *Facts) queueSchedules(b *pgx.Batch, l Limits) {
	queueRows(b, &f.SchedulesFailed, healthScheduleFailed, l.Listed)
	queueRows(b, &f.SchedulesStuck, healthScheduleStuck, schedulePatience, startPatience, l.Listed)
	queueRows(b, &f.SchedulesLate, healthScheduleLate, l.Listed)
}

// ParkedOps counts the operations of a collector that wait for somebody.
type ParkedOps struct {
	Collector string
	Ops       int64 // MaxCounted at the most
	Since     time.Time
}

// LateCollector is a collector with a key that should have been flushed long ago.
type LateCollector struct {
	Collector string
	Endpoint  string
	State     string
	PausedBy  string
	Since     time.Time // when the key should have been flushed
	Code      string    // of the last flush that came to nothing, when no other has come after it
	Message   string
}

// HungFlush is a collector with a flush that is under way for too long.
type HungFlush struct {
	Collector string
	Endpoint  string
	Key       string
	Since     time.Time     // when it was begun
	Timeout   time.Duration // what it may take
	Code      string        // of the last flush that came to nothing, when no other has come after it
	Message   string
}

// RefusingCollector is a collector that takes no operations, as what it stores with them cannot be had.
type RefusingCollector struct {
	Collector string
	Since     time.Time
	Last      time.Time // when it was last noted
	Problem   string
}

// Not waits: refusals that were noted within it are told of.
const refusedWindow = 24 * time.Hour

// hungAfter is how much longer than its time-out a flush may be under way before it is told of: its key is free
// [dispatch.DefaultClaimTTL] after that, unless its request was sent again.
const hungAfter = time.Minute

const (
	// Collectors are few; collector_op_parked.
	healthParked = `
SELECT c.name, p.ops, p.since
FROM collector c CROSS JOIN LATERAL (
    SELECT count(*) AS ops, min(parked_at) AS since FROM (
        SELECT parked_at FROM collector_op o WHERE o.collector = c.id AND parked_at IS NOT NULL
        ORDER BY seq LIMIT $1) AS few) p
WHERE c.state <> 'deleting' AND p.ops > 0
ORDER BY p.ops DESC, c.name LIMIT $2`

	// collector_key_due, once for each numbering and priority that there may be. A key that is full is due since its
	// oldest operation was added, up to max_age before it was.
	healthLateFlushes = `
SELECT c.name, c.endpoint, c.state, c.paused_by, d.due_at + c.max_age,
    CASE WHEN c.failures > 0 THEN c.failure_code ELSE '' END,
    CASE WHEN c.failures > 0 THEN c.failure_message ELSE '' END
FROM collector c CROSS JOIN LATERAL (
    SELECT min(first.due_at) AS due_at
    FROM generate_series(c.settled, c.numbering) AS n CROSS JOIN generate_series(0, c.levels) AS p
    CROSS JOIN LATERAL (
        SELECT due_at FROM collector_key k
        WHERE k.collector = c.id AND k.numbering = n AND k.priority = p AND flush IS NULL AND due_at IS NOT NULL
        ORDER BY due_at LIMIT 1) first) d
WHERE c.state <> 'deleting' AND d.due_at < tranche_now() - c.max_age - $1::interval
ORDER BY 5, 1 LIMIT $2`

	// collector_key_flushing. A flush may take as long as its time-out says; but where one has come to nothing already,
	// the next need not last for an hour before somebody is told.
	healthHungFlushes = `
SELECT c.name, c.endpoint, k.key, k.flushed_at, c.timeout,
    CASE WHEN c.failures > 0 THEN c.failure_code ELSE '' END,
    CASE WHEN c.failures > 0 THEN c.failure_message ELSE '' END
FROM collector c CROSS JOIN LATERAL (
    SELECT key, flushed_at FROM collector_key f
    WHERE f.collector = c.id AND f.flush IS NOT NULL ORDER BY flushed_at LIMIT 1) k
WHERE c.state <> 'deleting' AND (k.flushed_at < tranche_now() - c.timeout - $1::interval
    OR c.failures > 0 AND k.flushed_at < tranche_now() - $2::interval)
ORDER BY 4, 1 LIMIT $3`

	healthRefusals = `
SELECT name, refused_since, refused_at, refused_for FROM collector
WHERE state <> 'deleting' AND refused_since IS NOT NULL AND refused_at > tranche_now() - $1::interval
ORDER BY 2, 1 LIMIT $2`
)

func (f *Facts) queueCollectors(b *pgx.Batch, l Limits) {
	queueRows(b, &f.CollectorsParked, healthParked, MaxCounted, l.Listed)
	queueRows(b, &f.CollectorsLate, healthLateFlushes, l.Waiting, l.Listed)
	queueRows(b, &f.FlushesHung, healthHungFlushes, hungAfter, l.Waiting, l.Listed)
	queueRows(b, &f.CollectorsRefusing, healthRefusals, refusedWindow, l.Listed)
}
