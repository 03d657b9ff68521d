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

// FireKind is why a schedule fires.
type FireKind string

// The kinds of fire.
const (
	FireDue FireKind = "due" // its time has come
	FireNow FireKind = "now" // a user requested an immediate run
)

// FireState is the state of a due time.
type FireState string

// The states of a fire.
const (
	FireWaiting  FireState = "due"      // to be started at start_at
	FireQueued   FireState = "queued"   // waits for an earlier run of the schedule
	FireStarting FireState = "starting" // a leader is loading its items
	FireStarted  FireState = "started"  // it has a run
	FireSkipped  FireState = "skipped"  // deliberately: an earlier run was in progress, or an operator decided so
	FireMissed   FireState = "missed"   // it could not be started before its deadline
	FireFailed   FireState = "failed"   // it could not be started at all
)

// FireKey names a fire. There is one of each kind for a due time, regardless of who takes it.
type FireKey struct {
	Schedule string
	Due      time.Time
	Kind     FireKind
}

// ScheduleKeys is the prefix of the idempotency keys of runs started by schedules, reserved for them.
const ScheduleKeys = "schedule/"

// RunKey returns the idempotency key of the run that the fire starts.
func (k *FireKey) RunKey() string {
	key := ScheduleKeys + k.Schedule + "/" + k.Due.UTC().Format("2006-01-02T15:04:05.999999Z07:00")
	if k.Kind == FireNow {
		key += "/now"
	}
	return key
}

// Fire is a due time of a schedule and its state.
type Fire struct {
	Schedule string    `json:"schedule"`
	Due      time.Time `json:"due_at"`
	Kind     FireKind  `json:"kind" enum:"due,now"`
	Version  int       `json:"version" doc:"of the schedule, when the time had come"`
	State    FireState `json:"state" enum:"due,queued,starting,started,skipped,missed,failed"`
	Reason   string    `json:"reason,omitempty" doc:"why it is so"`
	AskedBy  string    `json:"asked_by,omitempty" doc:"who started it with run-now"`

	StartAt time.Time `json:"start_at" doc:"it is not started before: jitter, a window, or a pause between two attempts"`

	StartBy    *time.Time       `json:"start_by,omitempty" doc:"nor after"`
	DoneBy     *time.Time       `json:"done_by,omitempty" doc:"when its run should have ended"`
	LateAction string           `json:"late_action,omitempty" doc:"what was done when it had not"`
	Run        *workqueue.RunID `json:"run,omitempty"`
	RunState   string           `json:"run_state,omitempty" doc:"absent: there is no such run, or not any more"`
	Attempts   int              `json:"attempts"`
	BeganAt    *time.Time       `json:"began_at,omitempty"`
	EndedAt    *time.Time       `json:"ended_at,omitempty" doc:"when it was started, or given up"`
}

// Paused is not a state of a fire: it is shown for fires that wait for it, while it lasts.
const fireColumns = `schedule_occurrence.schedule, schedule_occurrence.due_at, schedule_occurrence.kind,
    schedule_occurrence.version, schedule_occurrence.state,
    CASE WHEN schedule_occurrence.state IN ('due', 'queued') AND schedule_occurrence.kind = 'due'
              AND EXISTS (SELECT FROM schedule p WHERE p.name = schedule_occurrence.schedule AND p.state = 'paused')
         THEN concat_ws('; ', 'the schedule is paused', nullif(schedule_occurrence.reason, ''))
         ELSE schedule_occurrence.reason END, schedule_occurrence.asked_by, schedule_occurrence.start_at,
    schedule_occurrence.start_by, schedule_occurrence.done_by, schedule_occurrence.late_action,
    schedule_occurrence.run_id,
    coalesce((SELECT r.state FROM batchrun r WHERE r.id = schedule_occurrence.run_id), ''),
    schedule_occurrence.attempts, schedule_occurrence.began_at, schedule_occurrence.ended_at`

func scanFire(row pgx.CollectableRow) (f Fire, err error) {
	err = row.Scan(&f.Schedule, &f.Due, &f.Kind, &f.Version, &f.State, &f.Reason, &f.AskedBy, &f.StartAt, &f.StartBy,
		&f.DoneBy, &f.LateAction, &f.Run, &f.RunState, &f.Attempts, &f.BeganAt, &f.EndedAt)
	return f, err
}

// FireFilter selects fires.
type FireFilter struct {
	Schedule string
	State    FireState // empty: any
	Before   time.Time // only due times before this one; zero: from the newest
	Limit    int       // 1 to MaxFires; 0 means DefaultFires
}

// The number of fires in one list.
const (
	DefaultFires = 100
	MaxFires     = 500
)

// The primary key, backwards. Due times of both kinds in the same microsecond are practically impossible.
const listFires = `
SELECT ` + fireColumns + `
FROM schedule_occurrence
WHERE schedule = $1 AND ($2 = '' OR state = $2) AND ($3::timestamptz IS NULL OR due_at < $3)
ORDER BY due_at DESC, kind
LIMIT $4`

// Fires lists a schedule's due times, newest first, also of a deleted schedule. more reports whether more follow.
func (s Store) Fires(ctx context.Context, f FireFilter) (fires []Fire, more bool, err error) {
	limit := pg.Limit(f.Limit, DefaultFires, MaxFires)
	if !pg.ValidText(f.Schedule) {
		return nil, false, fmt.Errorf("schedule %q: %w", f.Schedule, workqueue.ErrNotFound)
	}
	var before *time.Time
	if !f.Before.IsZero() {
		before = &f.Before
	}
	fires, err = pg.Collect(ctx, s.db.Pool, scanFire, listFires, f.Schedule, string(f.State), before, limit+1)
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("list what schedule %s did: %w", f.Schedule, err)
	case len(fires) == 0:
		var known bool
		if err := s.db.Pool.QueryRow(ctx, scheduleTrace, f.Schedule).Scan(&known); err != nil {
			return nil, false, fmt.Errorf("look for schedule %s: %w", f.Schedule, err)
		}
		if !known {
			return nil, false, fmt.Errorf("schedule %q: %w", f.Schedule, workqueue.ErrNotFound)
		}
	case len(fires) > limit:
		return fires[:limit], true, nil
	}
	return fires, false, nil
}

// FireClaim is the right to start a fire's run in one attempt of a leader.
type FireClaim struct {
	FireKey
	Lease   workqueue.Lease
	Attempt int
	DoneBy  *time.Time // when its run is to have ended; nil: whenever, or as its plan says
}

// One already being started is begun again: by the successor of a dead leader, or by the same leader, which knows
// what it is starting. The run's idempotency key prevents a second start.
const beginFire = `
UPDATE schedule_occurrence f
SET state = 'starting', attempts = f.attempts + 1, session_id = $4, epoch = $5, began_at = tranche_now(),
    reason = ''
FROM schedule s
WHERE s.name = f.schedule AND f.schedule = $1 AND f.due_at = $2 AND f.kind = $3
  AND s.deleted_at IS NULL AND (s.state = 'active' OR f.kind = 'now' OR f.state = 'starting')
  AND (f.state = 'starting' OR f.state IN ('due', 'queued') AND f.start_at <= tranche_now())
RETURNING f.attempts, f.done_by`

// BeginFire records that the leader starts a fire's run. ok is false if it was started, is not due, or is paused.
func (s Store) BeginFire(
	ctx context.Context, lease workqueue.Lease, key FireKey,
) (claim FireClaim, ok bool, err error) {
	claim = FireClaim{FireKey: key, Lease: lease}
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, beginFire, key.Schedule, key.Due, string(key.Kind), lease.Session, lease.Epoch).
			Scan(&claim.Attempt, &claim.DoneBy)
		if ok = err == nil; errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return claim, false, fmt.Errorf("begin to start schedule %s of %s: %w", key.Schedule, key.Due, err)
	}
	return claim, ok, nil
}

// FireEnd is the result of starting a fire, or of finding it waiting.
type FireEnd struct {
	State  FireState
	Run    workqueue.RunID // of FireStarted
	Reason string          // human-readable
	Again  time.Duration   // of FireWaiting and FireQueued: when to check it again
	// StartAt is the exact time for that, by which fires are ordered with their due times. Nil: after Again.
	StartAt *time.Time
	DoneBy  *time.Time // new deadline of its run; nil: unchanged
}

// errFireLost means that a fire is no longer this leader's to start.
var errFireLost = errors.New("another leader has taken up the start of this run")

// $7 is the attempt; 0: a leader that found it waiting.
const endFire = `
UPDATE schedule_occurrence
SET state = $4, reason = $5, run_id = nullif($6, '00000000-0000-0000-0000-000000000000'::uuid),
    start_at = CASE WHEN $4 IN ('due', 'queued') THEN coalesce($11, tranche_now() + $8::interval)
                    ELSE start_at END,
    done_by = coalesce($10, done_by),
    ended_at = CASE WHEN $4 IN ('due', 'queued') THEN NULL ELSE tranche_now() END
WHERE schedule = $1 AND due_at = $2 AND kind = $3
  AND CASE WHEN $7 = 0 THEN state IN ('due', 'queued') ELSE state = 'starting' AND attempts = $7 AND epoch = $9 END`

// EndFire saves the result of starting a fire or, with Attempt 0, of waiting. ok is false if its state changed.
func (s Store) EndFire(ctx context.Context, claim FireClaim, end FireEnd) (ok bool, err error) {
	err = session.New(s.db).AsLeader(ctx, claim.Lease, func(ctx context.Context, tx pgx.Tx) error {
		ok, err = writeFireEnd(ctx, tx, &claim, &end)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("end the start of schedule %s of %s: %w", claim.Schedule, claim.Due, err)
	}
	return ok, nil
}

func writeFireEnd(ctx context.Context, tx pgx.Tx, claim *FireClaim, end *FireEnd) (ok bool, err error) {
	tag, err := tx.Exec(ctx, endFire, claim.Schedule, claim.Due, string(claim.Kind), string(end.State),
		pg.Plain(end.Reason),
		end.Run, claim.Attempt, end.Again, claim.Lease.Epoch, end.DoneBy, end.StartAt)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	if end.State == FireFailed || end.State == FireMissed {
		return true, addScheduleEvent(ctx, tx, workqueue.EventKind("schedule."+string(end.State)), &claim.FireKey, end.Run,
			end.Reason)
	}
	return true, nil
}

// FireNote is why a fire waits.
type FireNote struct {
	FireKey
	Was, Reason string
}

// Changes only the reason, and only of fires that still wait for the reason that was read.
const noteFires = `
UPDATE schedule_occurrence f SET reason = n.reason
FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[]) AS n(schedule, due, kind, was, reason)
WHERE f.schedule = n.schedule AND f.due_at = n.due AND f.kind = n.kind AND f.state IN ('due', 'queued')
  AND f.reason = n.was`

// NoteFires saves why fires wait that are not being started. Leader work.
func (s Store) NoteFires(ctx context.Context, lease workqueue.Lease, notes []FireNote) error {
	var names, kinds, was, reasons []string
	var due []time.Time
	for i := range notes {
		n := &notes[i]
		names, due, kinds = append(names, n.Schedule), append(due, n.Due), append(kinds, string(n.Kind))
		was, reasons = append(was, n.Was), append(reasons, pg.Plain(n.Reason))
	}
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, noteFires, names, due, kinds, was, reasons)
		return err
	})
	if err != nil {
		return fmt.Errorf("note why runs of schedules wait: %w", err)
	}
	return nil
}

// OfFire starts a run, under the leader's lease, in the transaction that records its fire, and not at all if another
// leader took the fire over.
func OfFire(r *start.LoadRequest, claim FireClaim) {
	r.IdempotencyKey = claim.RunKey()
	r.Sealing = func(ctx context.Context, tx pgx.Tx, run workqueue.RunID) error {
		ok, err := writeFireEnd(ctx, tx, &claim, &FireEnd{State: FireStarted, Run: run})
		if err == nil && !ok {
			err = errFireLost
		}
		if err != nil {
			return err
		}
		return ledger.CheckLease(ctx, tx, ledger.HoldLease, claim.Lease)
	}
}
