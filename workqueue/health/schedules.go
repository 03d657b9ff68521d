package health

import (
	"fmt"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/schedule"
)

// failedSchedule is a schedule whose last due time has no run: it failed, or was missed.
type failedSchedule struct {
	Schedule string
	State    schedule.FireState // FireFailed or FireMissed
	Due      time.Time
	Reason   string
	Since    time.Time
}

// Schedules are few; the last fire of each by the primary key, backwards.
const healthScheduleFailed = `
SELECT s.name, f.state, f.due_at, f.reason, f.ended_at
FROM schedule s CROSS JOIN LATERAL (
    SELECT * FROM schedule_occurrence f WHERE f.schedule = s.name AND f.ended_at IS NOT NULL
    ORDER BY f.due_at DESC LIMIT 1) f
WHERE s.deleted_at IS NULL AND f.state IN ('failed', 'missed')
ORDER BY f.ended_at DESC, s.name LIMIT $1`

// failedSchedules tells of schedules whose last due time has no run.
func failedSchedules() query {
	return each(healthScheduleFailed, []any{listed}, func(_ *Facts, s *failedSchedule) Condition {
		what := "could not start its run"
		if s.State == schedule.FireMissed {
			what = "missed its time"
		}
		return Condition{
			Subject: s.Schedule, Since: s.Since, Title: fmt.Sprintf("Schedule %s %s", s.Schedule, what),
			Detail: fmt.Sprintf("That of %s has no run: %s", moment(s.Due), s.Reason),
			Remedy: fmt.Sprintf("Fix that, then start it: `tranche schedule run-now %s`; the next due time that "+
				"goes well ends this, too", s.Schedule),
		}
	})
}

// stuckSchedule is a schedule whose due time has come and is not taken, or whose run should have been started.
type stuckSchedule struct {
	Schedule string
	Due      time.Time
	Taken    bool       // it waits to be started
	Reason   string     // why, as far as the leader has said
	Loading  *time.Time // nil: its items are not being loaded
	Since    time.Time
}

const (
	// scheduleTimeout is how long after its time a due time may be taken: a new leader is there within seconds.
	scheduleTimeout = time.Minute
	// startTimeout is how long a run may be tried to be started before anybody is told.
	startTimeout = 5 * time.Minute
)

// schedule_due and schedule_occurrence_waiting. What is queued waits for a run, about which others tell. A first
// attempt may begin long after the due time: when a window opens, or when it is its turn.
const healthScheduleStuck = `
SELECT name, next_due, false, '', NULL::timestamptz, next_due FROM schedule
WHERE state = 'active' AND deleted_at IS NULL AND next_due < tranche_now() - $1::interval
UNION ALL
SELECT f.schedule, f.due_at, true, f.reason, CASE f.state WHEN 'starting' THEN f.began_at END,
    greatest(f.created_at, f.due_at)
FROM schedule_occurrence f JOIN schedule s ON s.name = f.schedule
WHERE f.state IN ('due', 'starting') AND s.state = 'active'
  AND CASE WHEN f.state = 'starting' AND f.attempts = 1 THEN f.began_at
           WHEN f.attempts > 0 THEN f.created_at ELSE f.start_at END < tranche_now() - $2::interval
ORDER BY 6, 1 LIMIT $3`

// stuckSchedules tells of due times without a run.
func stuckSchedules() query {
	return each(healthScheduleStuck, []any{scheduleTimeout, startTimeout, listed},
		func(f *Facts, s *stuckSchedule) Condition {
			c := Condition{
				Severity: Critical, Subject: s.Schedule, Since: s.Since,
				Title:  fmt.Sprintf("Schedule %s has been due for %s", s.Schedule, Ago(f.At.Sub(s.Since))),
				Detail: fmt.Sprintf("No leader has taken the due time %s.", moment(s.Due)),
				Remedy: "See whether a node leads, and what its tasks say: `tranche nodes`",
			}
			if !s.Taken {
				return c
			}
			c.Severity, c.Detail = Warning, fmt.Sprintf("The run of %s is not started yet.", moment(s.Due))
			switch {
			case s.Loading != nil:
				c.Detail += fmt.Sprintf(" Its items are being loaded, for %s.", Ago(f.At.Sub(*s.Loading)))
			case s.Reason != "":
				c.Detail += " The last that was heard: " + s.Reason
			}
			c.Remedy = fmt.Sprintf("It is retried by itself; fix what it says if it says anything. "+
				"What became of it: `tranche schedule history %s`", s.Schedule)
			return c
		})
}

// lateRun is a run of a schedule that has not ended by the end of its window, and still goes on.
type lateRun struct {
	Schedule    string
	Run         workqueue.RunID
	Did         string // what was done about it
	EndDeadline time.Time
}

// batchrun_active and schedule_occurrence_run.
const healthScheduleLate = `
SELECT f.schedule, r.id, f.late_action, f.end_deadline
FROM batchrun r JOIN schedule_occurrence f ON f.run_id = r.id
WHERE r.state IN ('loading', 'running') AND f.state = 'started' AND f.late_action <> ''
ORDER BY f.end_deadline, r.id LIMIT $1`

// lateRuns tells of runs that go on after the end of their window.
func lateRuns() query {
	return each(healthScheduleLate, []any{listed}, func(f *Facts, s *lateRun) Condition {
		return Condition{
			Subject: s.Run.String(), Since: s.EndDeadline, Title: fmt.Sprintf("A run of schedule %s is late", s.Schedule),
			Detail: fmt.Sprintf("It should have ended by %s, %s ago, and has not; what was done: %s.", moment(s.EndDeadline),
				Ago(f.At.Sub(s.EndDeadline)), s.Did),
			Remedy: fmt.Sprintf("See what it waits for: `tranche run explain %s`; or cancel it: `tranche run cancel %[1]s`",
				s.Run),
		}
	})
}
