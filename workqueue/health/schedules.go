package health

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/schedule"
)

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
