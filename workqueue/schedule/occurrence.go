package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// OccurrenceKind is why a schedule occurrences.
type OccurrenceKind string

// The kinds of occurrence.
const (
	OccurrenceDue OccurrenceKind = "due" // its time has come
	OccurrenceNow OccurrenceKind = "now" // a user requested an immediate run
)

// OccurrenceState is the state of a due time.
type OccurrenceState string

// The states of an occurrence.
const (
	OccurrenceWaiting  OccurrenceState = "due"      // to be started at start_at
	OccurrenceQueued   OccurrenceState = "queued"   // waits for an earlier run of the schedule
	OccurrenceStarting OccurrenceState = "starting" // a leader is loading its items
	OccurrenceStarted  OccurrenceState = "started"  // it has a run
	OccurrenceSkipped  OccurrenceState = "skipped"  // deliberately: an earlier run was in progress, or by an operator
	OccurrenceMissed   OccurrenceState = "missed"   // not started before its deadline, or left out after downtime
	OccurrenceFailed   OccurrenceState = "failed"   // it could not be started at all
)

// OccurrenceKey names an occurrence. There is one of each kind for a due time, regardless of who takes it.
type OccurrenceKey struct {
	Schedule string
	Due      time.Time
	Kind     OccurrenceKind
}

// ScheduleKeys is the prefix of the idempotency keys of runs started by schedules, reserved for them.
const ScheduleKeys = "schedule/"

// RunKey returns the idempotency key of the run that the occurrence starts.
func (k *OccurrenceKey) RunKey() string {
	key := ScheduleKeys + k.Schedule + "/" + k.Due.UTC().Format("2006-01-02T15:04:05.999999Z07:00")
	if k.Kind == OccurrenceNow {
		key += "/now"
	}
	return key
}

// Occurrence is a due time of a schedule and its state.
type Occurrence struct {
	Schedule string          `json:"schedule"`
	Due      time.Time       `json:"due_at"`
	Kind     OccurrenceKind  `json:"kind" enum:"due,now"`
	Version  int             `json:"version" doc:"of the schedule, when the time had come"`
	State    OccurrenceState `json:"state" enum:"due,queued,starting,started,skipped,missed,failed"`
	Reason   string          `json:"reason,omitempty" doc:"why it is so"`
	AskedBy  string          `json:"asked_by,omitempty" doc:"who started it with run-now"`

	StartAt time.Time `json:"start_at" doc:"it is not started before: jitter, a window, or a pause between two attempts"`

	StartBy    *time.Time       `json:"start_by,omitempty" doc:"nor after"`
	DoneBy     *time.Time       `json:"done_by,omitempty" doc:"when its run should have ended"`
	LateAction string           `json:"late_action,omitempty" doc:"what was done when it had not"`
	Run        *workqueue.RunID `json:"run,omitempty"`
	RunState   string           `json:"run_state,omitempty" doc:"absent: there is no such run, or not any more"`
	Attempts   int              `json:"attempts"`
	BeganAt    *time.Time       `json:"began_at,omitempty"`
	EndedAt    *time.Time       `json:"ended_at,omitempty" doc:"when it was started, or abandoned"`
}

// Paused is not a state of an occurrence: it is shown for occurrences that wait for it, while it lasts.
const occurrenceColumns = `schedule_occurrence.schedule, schedule_occurrence.due_at, schedule_occurrence.kind,
    schedule_occurrence.version, schedule_occurrence.state,
    CASE WHEN schedule_occurrence.state IN ('due', 'queued') AND schedule_occurrence.kind = 'due'
              AND EXISTS (SELECT FROM schedule p WHERE p.name = schedule_occurrence.schedule AND p.state = 'paused')
         THEN concat_ws('; ', 'the schedule is paused', nullif(schedule_occurrence.reason, ''))
         ELSE schedule_occurrence.reason END, schedule_occurrence.asked_by, schedule_occurrence.start_at,
    schedule_occurrence.start_by, schedule_occurrence.done_by, schedule_occurrence.late_action,
    schedule_occurrence.run_id,
    coalesce((SELECT r.state FROM batchrun r WHERE r.id = schedule_occurrence.run_id), ''),
    schedule_occurrence.attempts, schedule_occurrence.began_at, schedule_occurrence.ended_at`

// OccurrenceFilter selects occurrences.
type OccurrenceFilter struct {
	Schedule string          `path:"name" doc:"its name"`
	State    OccurrenceState `query:"state" enum:"due,queued,starting,started,skipped,missed,failed" doc:"only those in this state"`
	Before   time.Time       `query:"before" doc:"only due times before this one"`
	Limit    int             `query:"limit" minimum:"1" maximum:"500" default:"100"` // 0 means DefaultOccurrences
}

// OccurrenceList is a page of a schedule's past due times.
type OccurrenceList struct {
	Occurrences []Occurrence `json:"occurrences" nullable:"false"`
	Next        *time.Time   `json:"next,omitempty" doc:"value of before for the next page; absent on the last"`
}

// The number of occurrences in one list.
const (
	DefaultOccurrences = 100
	MaxOccurrences     = 500
)

// The primary key, backwards. Due times of both kinds in the same microsecond are practically impossible.
const listOccurrences = `
SELECT ` + occurrenceColumns + `
FROM schedule_occurrence
WHERE schedule = $1 AND ($2 = '' OR state = $2) AND ($3::timestamptz IS NULL OR due_at < $3)
  AND EXISTS (SELECT FROM schedule s WHERE s.name = $1 AND ($5::text[] IS NULL OR s.namespace = ANY ($5)))
ORDER BY due_at DESC, kind
LIMIT $4`

// Occurrences lists a schedule's due times, newest first, also of a deleted schedule.
func (s Store) Occurrences(ctx context.Context, f OccurrenceFilter) (list OccurrenceList, err error) {
	limit := pg.Limit(f.Limit, DefaultOccurrences, MaxOccurrences)
	if !pg.ValidText(f.Schedule) {
		return list, fmt.Errorf("schedule %q: %w", f.Schedule, workqueue.ErrNotFound)
	}
	names := workqueue.Namespaces(ctx)
	found, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[Occurrence], listOccurrences,
		f.Schedule, string(f.State), pg.UnlessZero(f.Before), limit+1, names)
	if err != nil {
		return list, fmt.Errorf("list what schedule %s did: %w", f.Schedule, err)
	}
	if known := len(found) > 0; !known {
		if err := s.db.Pool.QueryRow(ctx, scheduleTrace, f.Schedule, names).Scan(&known); err != nil {
			return list, fmt.Errorf("find schedule %s: %w", f.Schedule, err)
		}
		if !known {
			return list, fmt.Errorf("schedule %q: %w", f.Schedule, workqueue.ErrNotFound)
		}
	}
	list.Occurrences, list.Next = pg.Cut(found, limit, func(o *Occurrence) *time.Time { return &o.Due })
	return list, nil
}

// OccurrenceClaim is the right to start an occurrence's run in one attempt of a leader.
type OccurrenceClaim struct {
	OccurrenceKey
	Lease   workqueue.Lease
	Attempt int
	DoneBy  *time.Time // when its run is to have ended; nil: whenever, or as its plan says
}

// One already being started is begun again: by the successor of a dead leader, or by the same leader, which knows
// what it is starting. The run's idempotency key prevents a second start.
const beginOccurrence = `
UPDATE schedule_occurrence f
SET state = 'starting', attempts = f.attempts + 1, session_id = $4, epoch = $5, began_at = tranche_now(),
    reason = '', done_by = CASE WHEN f.done_by <= tranche_now() THEN $6 ELSE f.done_by END
FROM schedule s
WHERE s.name = f.schedule AND f.schedule = $1 AND f.due_at = $2 AND f.kind = $3
  AND s.deleted_at IS NULL AND (s.state = 'active' OR f.kind = 'now' OR f.state = 'starting')
  AND (f.state = 'starting' OR f.state IN ('due', 'queued') AND f.start_at <= tranche_now())
RETURNING f.attempts, f.done_by`

// BeginOccurrence records that the leader starts the run. If the deadline of its end has passed, doneBy replaces it. ok
// is false if it was started, is not due, or is paused.
func (s Store) BeginOccurrence(
	ctx context.Context, lease workqueue.Lease, key OccurrenceKey, doneBy *time.Time,
) (claim OccurrenceClaim, ok bool, err error) {
	claim = OccurrenceClaim{OccurrenceKey: key, Lease: lease}
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, beginOccurrence, key.Schedule, key.Due, string(key.Kind), lease.Session, lease.Epoch,
			doneBy).Scan(&claim.Attempt, &claim.DoneBy)
		ok = err == nil
		return pg.NoRow(err, nil)
	})
	return claim, ok, pg.Wrap(err, "begin to start schedule %s of %s", key.Schedule, key.Due)
}

// OccurrenceEnd is the result of starting an occurrence, or of finding it waiting.
type OccurrenceEnd struct {
	State  OccurrenceState
	Run    workqueue.RunID // of OccurrenceStarted
	Reason string          // human-readable
	Again  time.Duration   // of OccurrenceWaiting and OccurrenceQueued: when to check it again
	// StartAt is the exact time for that, by which occurrences are ordered with their due times. Nil: after Again.
	StartAt   *time.Time
	DoneBy    *time.Time // new deadline of its run; nil: unchanged
	Uncounted bool       // it was no attempt
}

// errOccurrenceLost means that an occurrence is no longer this leader's to start.
var errOccurrenceLost = errors.New("another leader has taken up the start of this run")

// $7 is the attempt; 0: a leader that found it waiting.
const endOccurrence = `
UPDATE schedule_occurrence
SET state = $4, reason = $5, run_id = nullif($6, '00000000-0000-0000-0000-000000000000'::uuid),
    start_at = CASE WHEN $4 IN ('due', 'queued') THEN coalesce($11, tranche_now() + $8::interval)
                    ELSE start_at END,
    done_by = coalesce($10, done_by), attempts = attempts - CASE WHEN $12 THEN 1 ELSE 0 END,
    ended_at = CASE WHEN $4 IN ('due', 'queued') THEN NULL ELSE tranche_now() END
WHERE schedule = $1 AND due_at = $2 AND kind = $3
  AND CASE WHEN $7 = 0 THEN state IN ('due', 'queued') ELSE state = 'starting' AND attempts = $7 AND epoch = $9 END`

// EndOccurrence saves the result of starting or, with Attempt 0, of waiting. ok is false if the state changed.
func (s Store) EndOccurrence(ctx context.Context, claim OccurrenceClaim, end OccurrenceEnd) (ok bool, err error) {
	err = session.New(s.db).AsLeader(ctx, claim.Lease, func(ctx context.Context, tx pgx.Tx) error {
		ok, err = writeEnd(ctx, tx, &claim, &end)
		return err
	})
	return ok, pg.Wrap(err, "end the start of schedule %s of %s", claim.Schedule, claim.Due)
}

func writeEnd(ctx context.Context, tx pgx.Tx, claim *OccurrenceClaim, end *OccurrenceEnd) (ok bool, err error) {
	tag, err := tx.Exec(ctx, endOccurrence, claim.Schedule, claim.Due, string(claim.Kind), string(end.State),
		pg.Plain(end.Reason),
		end.Run, claim.Attempt, end.Again, claim.Lease.Epoch, end.DoneBy, end.StartAt, end.Uncounted)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	if end.State == OccurrenceFailed || end.State == OccurrenceMissed {
		kind := workqueue.EventKind("schedule." + string(end.State))
		return true, addScheduleEvent(ctx, tx, kind, &claim.OccurrenceKey, end.Run, end.Reason)
	}
	return true, nil
}

// OccurrenceNote is why an occurrence waits.
type OccurrenceNote struct {
	OccurrenceKey
	Was, Reason string
}

// Changes only the reason, and only of occurrences that still wait for the reason that was read.
const noteOccurrences = `
UPDATE schedule_occurrence f SET reason = n.reason
FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[]) AS n(schedule, due, kind, was, reason)
WHERE f.schedule = n.schedule AND f.due_at = n.due AND f.kind = n.kind AND f.state IN ('due', 'queued')
  AND f.reason = n.was`

// NoteOccurrences saves why occurrences wait that are not being started. Leader work.
func (s Store) NoteOccurrences(ctx context.Context, lease workqueue.Lease, notes []OccurrenceNote) error {
	var names, kinds, was, reasons []string
	var due []time.Time
	for i := range notes {
		n := &notes[i]
		names, due, kinds = append(names, n.Schedule), append(due, n.Due), append(kinds, string(n.Kind))
		was, reasons = append(was, n.Was), append(reasons, pg.Plain(n.Reason))
	}
	_, err := session.New(s.db).ExecAsLeader(ctx, lease, noteOccurrences, names, due, kinds, was, reasons)
	return pg.Wrap(err, "note why runs of schedules wait")
}

const markRun = `UPDATE batchrun SET schedule = $2 WHERE id = $1`

// OfOccurrence starts a run, under the leader's lease, in the transaction that records its occurrence, and not if
// another leader took the occurrence over.
func OfOccurrence(r *start.LoadRequest, claim OccurrenceClaim) {
	r.IdempotencyKey = claim.RunKey()
	r.Sealing = func(ctx context.Context, tx pgx.Tx, run workqueue.RunID) error {
		ok, err := writeEnd(ctx, tx, &claim, &OccurrenceEnd{State: OccurrenceStarted, Run: run})
		if err == nil && !ok {
			err = errOccurrenceLost
		}
		if err == nil {
			_, err = tx.Exec(ctx, markRun, run, claim.Schedule)
		}
		if err != nil {
			return err
		}
		return ledger.CheckLease(ctx, tx, ledger.HoldLease, claim.Lease)
	}
}
