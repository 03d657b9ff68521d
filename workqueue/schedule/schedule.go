// Package schedule keeps schedules and their fires.
package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Store is the database for schedules. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// NextTime returns the first due time of a schedule after a moment; false: there is none. It is asked with the
// database's time, whatever clock its node has.
type NextTime func(spec json.RawMessage, after time.Time) (next time.Time, ok bool, err error)

// Text is a schedule on its way onto the record. The caller has validated it.
type Text struct {
	Name   string
	Spec   json.RawMessage // in full
	Source string          // as people wrote it; valid UTF-8 without NUL
	Zone   string
	Next   NextTime
}

// AppliedSchedule is the outcome of putting a schedule on record.
type AppliedSchedule struct {
	Name      string     `json:"name"`
	Version   int        `json:"version"`
	Unchanged bool       `json:"unchanged" doc:"it was so before: nothing was done"`
	Previous  int        `json:"previous,omitempty" doc:"the version before; absent when there was none"`
	State     string     `json:"state" enum:"active,paused" doc:"a paused schedule stays paused"`
	NextDue   *time.Time `json:"next_due,omitempty" doc:"absent: it is never due again"`
	ChangedBy string     `json:"changed_by"`
	ChangedAt time.Time  `json:"changed_at"`
}

const (
	// The row is held: those who change the same schedule take turns, and its due times are taken before or after.
	lockSchedule = `
SELECT version, state, deleted_at IS NOT NULL, spec = $2::jsonb AND source = $3, spec, next_due, changed_by, changed_at,
    tranche_now()
FROM schedule WHERE name = $1
FOR NO KEY UPDATE`

	// A conflict is another who was faster.
	insertSchedule = `
INSERT INTO schedule (name, spec, source, zone, next_due, created_by, changed_by)
VALUES ($1, $2, $3, $4, $5, $6, $6)
ON CONFLICT DO NOTHING
RETURNING version, changed_at`

	// One that was deleted begins again, but for its number.
	updateSchedule = `
UPDATE schedule
SET version = version + 1, spec = $2, source = $3, zone = $4, next_due = $5, changed_by = $6,
    changed_at = tranche_now(), state = CASE WHEN deleted_at IS NULL THEN state ELSE 'active' END,
    created_by = CASE WHEN deleted_at IS NULL THEN created_by ELSE $6 END,
    created_at = CASE WHEN deleted_at IS NULL THEN created_at ELSE tranche_now() END,
    last_due = CASE WHEN deleted_at IS NULL THEN last_due END, deleted_at = NULL
WHERE name = $1
RETURNING version, changed_at`
)

// ApplySchedule puts a schedule on record, or changes it, with a row in the audit log, which keeps what was there
// before. What is the same, text and meaning, changes nothing. Its next due time is the first one after now; but one
// that has come, and that no one has taken yet, is kept where the new text has it too.
func (s Store) ApplySchedule(ctx context.Context, text Text, actor string) (AppliedSchedule, error) {
	var out AppliedSchedule
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for range start.ApplyTries {
			var done bool
			var err error
			if out, done, err = applySchedule(ctx, tx, &text, actor); err != nil || done {
				return err
			}
		}
		return errors.New("others keep putting it on record at the same time; apply it again")
	})
	if err != nil {
		return AppliedSchedule{}, fmt.Errorf("apply schedule %s: %w", text.Name, err)
	}
	return out, nil
}

// scheduleRow is a schedule as a change finds it.
type scheduleRow struct {
	version   int
	state     string
	deleted   bool
	same      bool
	spec      json.RawMessage
	nextDue   *time.Time
	changedBy string
	changedAt time.Time
	now       time.Time
}

// applySchedule tries once; done is false when another was faster.
func applySchedule(ctx context.Context, tx pgx.Tx, text *Text, actor string) (
	out AppliedSchedule, done bool, err error,
) {
	out = AppliedSchedule{Name: text.Name, State: ScheduleActive}
	var was scheduleRow
	err = tx.QueryRow(ctx, lockSchedule, text.Name, text.Spec, text.Source).Scan(&was.version, &was.state, &was.deleted,
		&was.same, &was.spec, &was.nextDue, &was.changedBy, &was.changedAt, &was.now)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		was.deleted = true // or was never there
		if err := tx.QueryRow(ctx, pace.DatabaseTime).Scan(&was.now); err != nil {
			return out, false, fmt.Errorf("read the time: %w", err)
		}
	case err != nil:
		return out, false, fmt.Errorf("read what there is: %w", err)
	}
	if was.same && !was.deleted {
		return AppliedSchedule{Name: text.Name, Version: was.version, Unchanged: true, State: was.state,
			NextDue: was.nextDue, ChangedBy: was.changedBy, ChangedAt: was.changedAt}, true, nil
	}
	if out.NextDue, err = text.nextDue(&was); err != nil {
		return out, false, err
	}
	change := ledger.Action{Actor: actor, Name: "schedule_apply", Subject: text.Name}
	if !was.deleted {
		out.Previous, out.State = was.version, was.state
		change.Before = map[string]any{"version": was.version, "spec": was.spec}
	}
	write := insertSchedule
	if was.version > 0 {
		write = updateSchedule
	}
	out.ChangedBy = pg.Plain(actor)
	err = tx.QueryRow(ctx, write, text.Name, text.Spec, text.Source, text.Zone, out.NextDue, out.ChangedBy).
		Scan(&out.Version, &out.ChangedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return out, false, nil
	}
	if err != nil {
		return out, false, fmt.Errorf("write it: %w", err)
	}
	change.After = map[string]any{"version": out.Version, "spec": text.Spec}
	return out, true, ledger.AuditChange(ctx, tx, change)
}

// nextDue is the first due time after now, or the one that has come and is not taken yet.
func (text *Text) nextDue(was *scheduleRow) (*time.Time, error) {
	if !was.deleted && was.state == ScheduleActive && was.nextDue != nil && !was.nextDue.After(was.now) {
		kept, ok, err := text.Next(text.Spec, was.nextDue.Add(-time.Microsecond))
		if err != nil {
			return nil, err
		}
		if ok && kept.Equal(*was.nextDue) {
			return &kept, nil
		}
	}
	return nextAfter(text.Next, text.Spec, was.now)
}

func nextAfter(next NextTime, spec json.RawMessage, now time.Time) (*time.Time, error) {
	due, ok, err := next(spec, now)
	if err != nil || !ok {
		return nil, err
	}
	return &due, nil
}

// DatabaseTime returns the database's time: the only one that due times are compared with.
func (s Store) DatabaseTime(ctx context.Context) (now time.Time, err error) {
	if err := s.db.Pool.QueryRow(ctx, pace.DatabaseTime).Scan(&now); err != nil {
		return now, fmt.Errorf("read the time: %w", err)
	}
	return now, nil
}

// The states of a schedule.
const (
	ScheduleActive = "active"
	SchedulePaused = "paused"
)

// ControlledSchedule is a schedule that an operator has paused, resumed or deleted.
type ControlledSchedule struct {
	Name      string     `json:"name"`
	State     string     `json:"state" enum:"active,paused,deleted"`
	Unchanged bool       `json:"unchanged" doc:"it was so before: nothing was done"`
	NextDue   *time.Time `json:"next_due,omitempty" doc:"absent: it is not due again, or not before it is resumed"`
	Waiting   int64      `json:"waiting" doc:"due times that have come and whose runs are not started yet"`
}

const (
	// The row is held, so that due times are taken before or after.
	holdSchedule = `
SELECT state, spec, next_due, tranche_now(),
    (SELECT count(*) FROM schedule_occurrence f WHERE f.schedule = s.name AND f.state IN ('due', 'queued', 'starting'))
FROM schedule s WHERE name = $1 AND deleted_at IS NULL
FOR NO KEY UPDATE OF s`

	setSchedule = `
UPDATE schedule SET state = $2, next_due = $3, changed_by = $4, changed_at = tranche_now() WHERE name = $1`

	endSchedule = `
UPDATE schedule SET deleted_at = tranche_now(), changed_by = $2, changed_at = tranche_now(), next_due = NULL
WHERE name = $1`

	// What is being started just now, too: its run begins before, or does not begin. A leader that dies in the middle of
	// it would leave it for the schedule that has the name next.
	dropFires = `
UPDATE schedule_occurrence SET state = 'skipped', reason = 'the schedule was deleted', ended_at = tranche_now()
WHERE schedule = $1 AND state IN ('due', 'queued', 'starting')`
)

type heldSchedule struct {
	state   string
	spec    json.RawMessage
	nextDue *time.Time
	now     time.Time
	waiting int64
}

func holdOneSchedule(ctx context.Context, tx pgx.Tx, name string) (*heldSchedule, error) {
	h := &heldSchedule{}
	err := tx.QueryRow(ctx, holdSchedule, name).Scan(&h.state, &h.spec, &h.nextDue, &h.now, &h.waiting)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, absentSchedule(ctx, tx, name)
	}
	return h, err
}

// PauseSchedule lets a schedule start nothing until it is resumed, but for what is asked for at once. Due times that
// come meanwhile are left out, and nothing counts them as missed. Runs go on.
func (s Store) PauseSchedule(ctx context.Context, name, actor string) (ControlledSchedule, error) {
	return s.setSchedule(ctx, name, SchedulePaused, nil, actor)
}

// ResumeSchedule ends a pause: the schedule goes on with its first due time after now, and with what had been waiting.
func (s Store) ResumeSchedule(
	ctx context.Context, name string, next NextTime, actor string,
) (ControlledSchedule, error) {
	return s.setSchedule(ctx, name, ScheduleActive, next, actor)
}

func (s Store) setSchedule(ctx context.Context, name, state string, next NextTime, actor string) (
	out ControlledSchedule, err error,
) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		h, err := holdOneSchedule(ctx, tx, name)
		if err != nil {
			return err
		}
		out = ControlledSchedule{Name: name, State: state, Waiting: h.waiting}
		if h.state == state {
			out.Unchanged, out.NextDue = true, h.nextDue
			return nil
		}
		if next != nil {
			if out.NextDue, err = nextAfter(next, h.spec, h.now); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, setSchedule, name, state, out.NextDue, pg.Plain(actor)); err != nil {
			return err
		}
		verb := map[string]string{SchedulePaused: "schedule_pause", ScheduleActive: "schedule_resume"}[state]
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: verb, Subject: name,
			Before: map[string]any{"state": h.state, "next_due": h.nextDue},
			After:  map[string]any{"state": state, "next_due": out.NextDue}})
	})
	if err != nil {
		return ControlledSchedule{}, fmt.Errorf("set schedule %s %s: %w", name, state, err)
	}
	return out, nil
}

// DeleteSchedule takes a schedule off the record. What waits to be started is skipped; runs go on, and the history
// stays. Applied again, it has the next version.
func (s Store) DeleteSchedule(ctx context.Context, name, actor string) (out ControlledSchedule, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		h, err := holdOneSchedule(ctx, tx, name)
		if err != nil {
			return err
		}
		out = ControlledSchedule{Name: name, State: "deleted", Waiting: h.waiting}
		if _, err := tx.Exec(ctx, endSchedule, name, pg.Plain(actor)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, dropFires, name); err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "schedule_delete", Subject: name,
			Before: map[string]any{"state": h.state, "spec": h.spec, "next_due": h.nextDue}})
	})
	if err != nil {
		return ControlledSchedule{}, fmt.Errorf("delete schedule %s: %w", name, err)
	}
	return out, nil
}

const (
	// FOR SHARE: a deletion comes before or after.
	shareSchedule = `SELECT version FROM schedule WHERE name = $1 AND deleted_at IS NULL FOR SHARE`

	insertFireNow = `
INSERT INTO schedule_occurrence (schedule, due_at, kind, version, state, asked_by, start_at)
SELECT $1, t.now, 'now', $2, 'due', $3, t.now FROM (SELECT tranche_now() AS now) t
RETURNING ` + fireColumns
)

// RunScheduleNow has a schedule start a run at once, beside its due times, whether it is paused or not. The leader
// starts it; its policy about runs that overlap holds.
func (s Store) RunScheduleNow(ctx context.Context, name, actor string) (fire Fire, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var version int
		err := tx.QueryRow(ctx, shareSchedule, name).Scan(&version)
		if errors.Is(err, pgx.ErrNoRows) {
			return absentSchedule(ctx, tx, name)
		}
		if err != nil {
			return err
		}
		if fire, err = pg.One(ctx, tx, scanFire, insertFireNow, name, version, pg.Plain(actor)); err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "schedule_run_now", Subject: name,
			After: map[string]any{"due_at": fire.Due, "version": version}})
	})
	if err != nil {
		return Fire{}, fmt.Errorf("run schedule %s now: %w", name, err)
	}
	return fire, nil
}
