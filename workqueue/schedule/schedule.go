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

	// One that was deleted begins anew, but for its number.
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
// that has come, and that nobody has taken yet, is kept where the new text has it too.
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
