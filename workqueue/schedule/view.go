package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// ScheduleSummary is a schedule in a list.
type ScheduleSummary struct {
	Name      string      `json:"name"`
	Namespace string      `json:"namespace" doc:"that owns it, and its runs"`
	Version   int         `json:"version"`
	State     string      `json:"state" enum:"active,paused"`
	Zone      string      `json:"zone" doc:"in which its due times are meant"`
	When      string      `json:"when" doc:"its cron expression, or every so often"`
	Plan      string      `json:"plan" doc:"or the endpoint"`
	NextDue   *time.Time  `json:"next_due,omitempty" doc:"absent: it is not due again"`
	LastDue   *time.Time  `json:"last_due,omitempty" doc:"the due time that was taken last"`
	Waiting   int64       `json:"waiting" doc:"due times that have come and whose runs are not started yet"`
	Running   int64       `json:"running" doc:"runs of it in progress"`
	Last      *Occurrence `json:"last,omitempty" doc:"the outcome of the last due time"`
	CreatedBy string      `json:"created_by"`
	CreatedAt time.Time   `json:"created_at"`
	ChangedBy string      `json:"changed_by"`
	ChangedAt time.Time   `json:"changed_at"`
}

// ScheduleView is a schedule, complete.
type ScheduleView struct {
	ScheduleSummary
	Spec   json.RawMessage `json:"spec" doc:"with every setting"`
	Source string          `json:"source" doc:"the applied text"`
	Now    time.Time       `json:"now" doc:"the database's time, with which due times are compared"`
}

// The number of schedules in one list.
const (
	DefaultSchedules = 100
	MaxSchedules     = 500
)

const (
	// Occurrences by the primary key and schedule_occurrence_waiting; runs by batchrun_active and schedule_occurrence_run.
	scheduleColumns = `s.name, s.namespace, s.version, s.state, s.zone,
    coalesce(nullif(s.spec->>'cron', ''), 'every ' || nullif(s.spec->>'every', ''), ''),
    coalesce(nullif(s.spec->>'plan', ''), s.spec->>'endpoint', ''), s.next_due, s.last_due,
    (SELECT count(*) FROM schedule_occurrence f WHERE f.schedule = s.name AND f.state IN ('due', 'queued', 'starting')),
    (SELECT count(*) FROM batchrun r JOIN schedule_occurrence f ON f.run_id = r.id
     WHERE r.state IN ('loading', 'running') AND f.schedule = s.name AND f.state = 'started'),
    s.created_by, s.created_at, s.changed_by, s.changed_at, s.spec, s.source, tranche_now()`

	listSchedules = `
SELECT ` + scheduleColumns + `
FROM schedule s WHERE s.deleted_at IS NULL AND s.name > $1
    AND ($3::text[] IS NULL OR s.namespace = ANY ($3)) ORDER BY s.name LIMIT $2`

	oneSchedule = `
SELECT ` + scheduleColumns + `
FROM schedule s WHERE s.deleted_at IS NULL AND s.name = $1 AND ($2::text[] IS NULL OR s.namespace = ANY ($2))`

	lastOccurrences = `
SELECT ` + occurrenceColumns + `
FROM unnest($1::text[]) AS n(name)
CROSS JOIN LATERAL (SELECT * FROM schedule_occurrence f WHERE f.schedule = n.name ORDER BY f.due_at DESC, f.kind LIMIT 1
) schedule_occurrence`
)

// ScheduleList is a page of schedules.
type ScheduleList struct {
	Schedules []ScheduleSummary `json:"schedules" nullable:"false"`
	Next      string            `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// Schedules lists schedules by name, after one.
func (s Store) Schedules(ctx context.Context, after string, limit int) (list ScheduleList, err error) {
	limit = pg.Limit(limit, DefaultSchedules, MaxSchedules)
	if !pg.ValidText(after) {
		return list, fmt.Errorf("schedule %q: %w", after, workqueue.ErrNotFound)
	}
	views, err := pg.Collect(ctx, s.db.Pool, scanSchedule, listSchedules, after, limit+1, workqueue.Namespaces(ctx))
	if err != nil {
		return list, fmt.Errorf("list schedules: %w", err)
	}
	views, list.Next = pg.Cut(views, limit, func(v *ScheduleView) string { return v.Name })
	list.Schedules = make([]ScheduleSummary, len(views))
	for i := range views {
		list.Schedules[i] = views[i].ScheduleSummary
	}
	return list, s.addLast(ctx, list.Schedules)
}

// Schedule returns a schedule. The error wraps ErrNotFound if it does not exist.
func (s Store) Schedule(ctx context.Context, name string) (*ScheduleView, error) {
	if !pg.ValidText(name) {
		return nil, fmt.Errorf("schedule %q: %w", name, workqueue.ErrNotFound)
	}
	view, err := pg.One(ctx, s.db.Pool, scanSchedule, oneSchedule, name, workqueue.Namespaces(ctx))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, absentSchedule(ctx, s.db.Pool, name)
	case err != nil:
		return nil, fmt.Errorf("read schedule %s: %w", name, err)
	}
	one := []ScheduleSummary{view.ScheduleSummary}
	err = s.addLast(ctx, one)
	view.ScheduleSummary = one[0]
	return &view, err
}

func (s Store) addLast(ctx context.Context, list []ScheduleSummary) error {
	at := map[string]int{}
	var names []string
	for i := range list {
		at[list[i].Name] = i
		names = append(names, list[i].Name)
	}
	occurrences, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[Occurrence], lastOccurrences, names)
	if err != nil {
		return fmt.Errorf("read what schedules did last: %w", err)
	}
	for i := range occurrences {
		list[at[occurrences[i].Schedule]].Last = &occurrences[i]
	}
	return nil
}

func scanSchedule(row pgx.CollectableRow) (v ScheduleView, err error) {
	err = row.Scan(&v.Name, &v.Namespace, &v.Version, &v.State, &v.Zone, &v.When, &v.Plan, &v.NextDue, &v.LastDue,
		&v.Waiting, &v.Running, &v.CreatedBy, &v.CreatedAt, &v.ChangedBy, &v.ChangedAt, &v.Spec, &v.Source, &v.Now)
	return v, err
}

const scheduleTrace = `
SELECT EXISTS (SELECT FROM schedule WHERE name = $1 AND ($2::text[] IS NULL OR namespace = ANY ($2)))`

func absentSchedule(ctx context.Context, q pg.RowQuerier, name string) error {
	var deleted bool
	if err := q.QueryRow(ctx, scheduleTrace, name, workqueue.Namespaces(ctx)).Scan(&deleted); err != nil {
		return fmt.Errorf("find schedule %s: %w", name, err)
	}
	if deleted {
		return fmt.Errorf("schedule %q was deleted: %w", name, workqueue.ErrNotFound)
	}
	return fmt.Errorf("schedule %q: %w", name, workqueue.ErrNotFound)
}

// Events of schedules, published on tranche.event.<kind>.
const (
	EventScheduleFailed workqueue.EventKind = "schedule.failed" // a run could not be started
	EventScheduleMissed workqueue.EventKind = "schedule.missed" // nor before its deadline
	EventScheduleLate   workqueue.EventKind = "schedule.late"   // a run has not ended before its deadline
)

// addScheduleEvent adds an event about an occurrence; without a run, the event's run is zero.
func addScheduleEvent(ctx context.Context, tx pgx.Tx, kind workqueue.EventKind, key *OccurrenceKey, run workqueue.RunID,
	reason string,
) error {
	return ledger.AddEvent(ctx, tx, run, 0, kind, map[string]any{
		"schedule": key.Schedule, "due_at": key.Due, "kind": key.Kind, "reason": pg.Plain(reason),
	})
}

// LateOccurrence is an occurrence whose run did not end before its deadline.
type LateOccurrence struct {
	OccurrenceKey
	Run    workqueue.RunID
	Spec   json.RawMessage // of the current schedule
	DoneBy time.Time
}

const (
	// Both by schedule_occurrence_late. A deleted run, or one that ended before its deadline, is not late.
	settleInTime = `
UPDATE schedule_occurrence f SET late_at = tranche_now()
WHERE f.state = 'started' AND f.late_at IS NULL AND f.done_by <= tranche_now()
  AND NOT EXISTS (SELECT FROM batchrun r WHERE r.id = f.run_id
                  AND (r.state IN ('loading', 'running') OR r.finished_at > f.done_by))`

	lateOccurrences = `
SELECT f.schedule, f.due_at, f.kind, f.run_id, s.spec, f.done_by
FROM schedule_occurrence f JOIN schedule s ON s.name = f.schedule
WHERE f.state = 'started' AND f.late_at IS NULL AND f.done_by <= tranche_now()
ORDER BY f.done_by LIMIT $1`
)

// LateOccurrences returns unhandled occurrences whose runs missed their end deadline. Leader work.
func (s Store) LateOccurrences(ctx context.Context, lease workqueue.Lease, limit int) ([]LateOccurrence, error) {
	var late []LateOccurrence
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, settleInTime); err != nil {
			return err
		}
		var err error
		late, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[LateOccurrence], lateOccurrences, limit)
		return err
	})
	return late, pg.Wrap(err, "find runs of schedules that are late")
}

// Once: late_at is the fence.
const noteLate = `
UPDATE schedule_occurrence SET late_at = tranche_now(), late_action = $4
WHERE schedule = $1 AND due_at = $2 AND kind = $3 AND state = 'started' AND late_at IS NULL
RETURNING run_id`

// NoteLate records what was done about a late run, once, with an event. ok is false if it was before. Leader work.
func (s Store) NoteLate(
	ctx context.Context, lease workqueue.Lease, key OccurrenceKey, did string,
) (ok bool, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		var run workqueue.RunID
		err := tx.QueryRow(ctx, noteLate, key.Schedule, key.Due, string(key.Kind), pg.Plain(did)).Scan(&run)
		if ok = err == nil; !ok {
			return pg.NoRow(err, nil)
		}
		return addScheduleEvent(ctx, tx, EventScheduleLate, &key, run, did)
	})
	return ok, pg.Wrap(err, "note that schedule %s of %s is late", key.Schedule, key.Due)
}
