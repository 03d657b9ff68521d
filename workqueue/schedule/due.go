package schedule

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// DueSchedule is a schedule whose next due time has come.
type DueSchedule struct {
	Name    string
	Version int
	Spec    json.RawMessage
	NextDue time.Time
	Now     time.Time // the database's time
}

// By schedule_due.
const dueSchedules = `
SELECT name, version, spec, next_due, tranche_now()
FROM schedule
WHERE state = 'active' AND deleted_at IS NULL AND next_due <= tranche_now()
ORDER BY next_due, name LIMIT $1`

// DueSchedules returns schedules whose next due time has come, longest waiting first.
func (s Store) DueSchedules(ctx context.Context, limit int) ([]DueSchedule, error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	due, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[DueSchedule], dueSchedules, limit)
	return due, pg.Wrap(err, "find due schedules")
}

// Taking takes due times of a schedule: each becomes an occurrence, once, and the next due time follows them.
type Taking struct {
	Schedule    string
	Version     int
	Was         time.Time       // its next due time as read: if it has changed, nothing is taken
	LastDue     time.Time       // the latest that is taken
	Next        *time.Time      // nil: never due again
	Occurrences []NewOccurrence // with different due times
}

// NewOccurrence is a due time to be taken.
type NewOccurrence struct {
	Due     time.Time
	StartAt time.Time // the due time, or later because of jitter or a window
	StartBy *time.Time
	DoneBy  *time.Time
	State   OccurrenceState // OccurrenceWaiting; OccurrenceMissed and OccurrenceSkipped start nothing
	Reason  string
}

const (
	// The fence: another leader has moved the due time on, or the schedule is paused, changed or deleted.
	takeSchedule = `
UPDATE schedule SET next_due = $4, last_due = $5
WHERE name = $1 AND version = $2 AND next_due = $3 AND state = 'active' AND deleted_at IS NULL`

	// A due time that already fired stays unchanged.
	insertOccurrences = `
INSERT INTO schedule_occurrence (schedule, due_at, kind, version, state, reason, start_at, start_by, done_by,
    ended_at)
SELECT $1, f.due, 'due', $2, f.state, f.reason, f.start_at, f.start_by, f.done_by,
    CASE WHEN f.state = 'due' THEN NULL ELSE tranche_now() END
FROM unnest($3::timestamptz[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[], $8::timestamptz[])
    AS f(due, state, reason, start_at, start_by, done_by)
ON CONFLICT DO NOTHING
RETURNING due_at, state, reason`
)

// TakeOccurrences takes due times of a schedule. taken is false if they can no longer be taken. Leader work.
func (s Store) TakeOccurrences(ctx context.Context, lease workqueue.Lease, t Taking) (taken bool, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, takeSchedule, t.Schedule, t.Version, t.Was, t.Next, t.LastDue)
		if err != nil {
			return err
		}
		if taken = tag.RowsAffected() == 1; !taken {
			return nil
		}
		return t.insert(ctx, tx)
	})
	return taken, pg.Wrap(err, "take due times of schedule %s", t.Schedule)
}

func (t *Taking) insert(ctx context.Context, tx pgx.Tx) error {
	var due, startAt []time.Time
	var startBy, doneBy []*time.Time
	var states, reasons []string
	for i := range t.Occurrences {
		f := &t.Occurrences[i]
		due, startAt = append(due, f.Due), append(startAt, f.StartAt)
		startBy, doneBy = append(startBy, f.StartBy), append(doneBy, f.DoneBy)
		states, reasons = append(states, string(f.State)), append(reasons, pg.Plain(f.Reason))
	}
	type inserted struct {
		Due    time.Time
		State  OccurrenceState
		Reason string
	}
	made, err := pg.Collect(ctx, tx, pgx.RowToStructByPos[inserted], insertOccurrences, t.Schedule, t.Version, due, states,
		reasons, startAt, startBy, doneBy)
	if err != nil {
		return err
	}
	for _, m := range made {
		if m.State == OccurrenceMissed {
			key := OccurrenceKey{t.Schedule, m.Due, OccurrenceDue}
			if err := addScheduleEvent(ctx, tx, EventScheduleMissed, &key, workqueue.RunID{}, m.Reason); err != nil {
				return err
			}
		}
	}
	return nil
}

// WaitingOccurrence is an occurrence to be started.
type WaitingOccurrence struct {
	OccurrenceKey
	Spec     json.RawMessage // of the current schedule, which starts
	State    OccurrenceState // waiting, queued, or starting: a leader that may be dead has begun it
	Reason   string          // why it waits
	StartAt  time.Time
	StartBy  *time.Time
	Queued   int               // queued occurrences of the schedule
	UnderWay []workqueue.RunID // runs of the schedule that have not ended
	Passed   bool              // the run of a later due time has started
	Now      time.Time
}

// schedule_occurrence_waiting finds them; runs in progress are found as in a list of schedules. Of those with the
// same start the earliest due goes first; of a queue only the head is read.
const waitingOccurrences = `
SELECT f.schedule, f.due_at, f.kind, s.spec, f.state, f.reason, f.start_at, f.start_by,
    (SELECT count(*) FROM schedule_occurrence o WHERE o.schedule = f.schedule AND o.state = 'queued'),
    ARRAY(SELECT r.id FROM batchrun r JOIN schedule_occurrence o ON o.run_id = r.id
          WHERE r.state IN ('loading', 'running') AND o.schedule = f.schedule AND o.state = 'started' ORDER BY r.id),
    EXISTS (SELECT FROM schedule_occurrence o
            WHERE o.schedule = f.schedule AND o.due_at > f.due_at AND o.kind = 'due' AND o.state = 'started'),
    tranche_now()
FROM schedule_occurrence f JOIN schedule s ON s.name = f.schedule
WHERE f.state IN ('due', 'queued', 'starting') AND f.start_at <= tranche_now() AND s.deleted_at IS NULL
  AND (s.state = 'active' OR f.kind = 'now' OR f.state = 'starting')
  AND (f.state <> 'queued' OR f.due_at = (SELECT min(o.due_at) FROM schedule_occurrence o
                                          WHERE o.schedule = f.schedule AND o.state = 'queued'
                                            AND (s.state = 'active' OR o.kind = 'now')))
ORDER BY f.state <> 'queued', f.start_at, f.due_at, f.schedule
LIMIT $1`

// WaitingOccurrences returns occurrences whose start has come, and those being started. The caller knows its own.
func (s Store) WaitingOccurrences(ctx context.Context, limit int) ([]WaitingOccurrence, error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	found, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[WaitingOccurrence], waitingOccurrences, limit)
	return found, pg.Wrap(err, "find runs to start")
}

// Each by its partial index.
const nextScheduleTime = `
SELECT least(
    (SELECT min(next_due) FROM schedule WHERE state = 'active' AND deleted_at IS NULL),
    (SELECT min(start_at) FROM schedule_occurrence WHERE state IN ('due', 'queued', 'starting')),
    (SELECT min(done_by) FROM schedule_occurrence WHERE state = 'started' AND late_at IS NULL))
    - tranche_now()`

// NextScheduleTime returns the time until a schedule needs action; 0: now. ok is false if none will.
func (s Store) NextScheduleTime(ctx context.Context) (wait time.Duration, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	var until *time.Duration
	err = s.db.Pool.QueryRow(ctx, nextScheduleTime).Scan(&until)
	if err != nil || until == nil {
		return 0, false, pg.Wrap(err, "find when schedules are due")
	}
	return max(*until, 0), true, nil
}
