// Package schedule stores schedules and their occurrences. A due time occurs once, and starts at most one run, even if
// leaders die. Due times are compared only with the database's clock.
package schedule

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Store reads and writes schedules. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// NextTime returns the first due time of a schedule after a time; nil: none. after is the database's time.
type NextTime func(spec json.RawMessage, after time.Time) (*time.Time, error)

// Text is a schedule to be saved.
type Text struct {
	workqueue.Document
	Zone string
	Next NextTime
}

// kind is how schedules are stored. A schedule's row serializes taking due times with changes.
func kind() ledger.Kind {
	return ledger.Kind{
		Name: "schedule",
		Hold: `
SELECT version, state, deleted_at IS NOT NULL, spec = $2::jsonb AND source = $3, spec, next_due, changed_by, changed_at,
    namespace
FROM schedule WHERE name = $1
FOR NO KEY UPDATE`,
		Left: `
SELECT count(*), 0 FROM schedule_occurrence WHERE schedule = $1 AND state IN ('due', 'queued', 'starting')`,
	}
}

// A deleted schedule starts again, except for its version.
const writeSchedule = `
INSERT INTO schedule AS s (name, spec, source, zone, next_due, created_by, changed_by, namespace)
VALUES ($1, $2, $3, $4, $5, $6, $6, $7)
ON CONFLICT (name) DO UPDATE
SET version = s.version + 1, spec = $2, source = $3, zone = $4, next_due = $5, changed_by = $6,
    changed_at = tranche_now(), state = CASE WHEN s.deleted_at IS NULL THEN s.state ELSE 'active' END,
    created_by = CASE WHEN s.deleted_at IS NULL THEN s.created_by ELSE $6 END,
    created_at = CASE WHEN s.deleted_at IS NULL THEN s.created_at ELSE tranche_now() END,
    last_due = CASE WHEN s.deleted_at IS NULL THEN s.last_due END, deleted_at = NULL
RETURNING version, changed_at`

// ApplySchedule creates or changes a schedule. A due time not yet taken stays if the new text has it, too.
func (s Store) ApplySchedule(ctx context.Context, text Text, actor string) (workqueue.AppliedDocument, error) {
	return kind().Apply(ctx, s.db, &text.Document, actor,
		func(ctx context.Context, tx pgx.Tx, was *ledger.Held, out *workqueue.AppliedDocument) (err error) {
			if out.NextDue, err = text.nextDue(ctx, tx, was); err != nil {
				return err
			}
			return tx.QueryRow(ctx, writeSchedule, text.Name, text.Spec, text.Source, text.Zone, out.NextDue, out.ChangedBy,
				workqueue.Into(ctx)).
				Scan(&out.Version, &out.ChangedAt)
		})
}

// nextDue is the first due time after now, or one that has come and was not taken.
func (text *Text) nextDue(ctx context.Context, tx pgx.Tx, was *ledger.Held) (*time.Time, error) {
	now, err := pg.Now(ctx, tx)
	if err != nil {
		return nil, err
	}
	if !was.Deleted && was.State == workqueue.DocumentActive && was.NextDue != nil && !was.NextDue.After(now) {
		kept, err := text.Next(text.Spec, was.NextDue.Add(-time.Microsecond))
		if err != nil || kept != nil && kept.Equal(*was.NextDue) {
			return kept, err
		}
	}
	return text.Next(text.Spec, now)
}

// DatabaseTime returns the database's time, the only one that due times are compared with.
func (s Store) DatabaseTime(ctx context.Context) (time.Time, error) { return pg.Now(ctx, s.db.Pool) }

const (
	setSchedule = `
UPDATE schedule SET state = $2, next_due = $3, changed_by = $4, changed_at = tranche_now() WHERE name = $1`

	endSchedule = `
UPDATE schedule SET deleted_at = tranche_now(), changed_by = $2, changed_at = tranche_now(), next_due = NULL
WHERE name = $1`

	// Includes one being started, whose run starts before this or not at all, so that no later schedule inherits it.
	dropOccurrences = `
UPDATE schedule_occurrence SET state = 'skipped', reason = 'the schedule was deleted', ended_at = tranche_now()
WHERE schedule = $1 AND state IN ('due', 'queued', 'starting')`
)

// SetSchedule pauses, resumes or deletes a schedule. A paused one starts only requested runs; due times meanwhile
// leave no occurrences and do not count as missed. Resumed, it continues with its first due time after now, and with
// occurrences that waited. Deleting skips waiting ones and keeps the history; applied again, it has the next version.
// Runs continue.
func (s Store) SetSchedule(
	ctx context.Context, name, state string, next NextTime, actor string,
) (workqueue.ControlledDocument, error) {
	return kind().Set(ctx, s.db, name, state, actor,
		func(ctx context.Context, tx pgx.Tx, was *ledger.Held, out *workqueue.ControlledDocument) error {
			out.NextDue = nil
			switch state {
			case workqueue.DocumentDeleted:
				if _, err := tx.Exec(ctx, endSchedule, name, pg.Plain(actor)); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, dropOccurrences, name)
				return err
			case workqueue.DocumentActive:
				now, err := pg.Now(ctx, tx)
				if err != nil {
					return err
				}
				if out.NextDue, err = next(was.Spec, now); err != nil {
					return err
				}
			}
			_, err := tx.Exec(ctx, setSchedule, name, state, out.NextDue, pg.Plain(actor))
			return err
		})
}

const insertOccurrenceNow = `
INSERT INTO schedule_occurrence (schedule, due_at, kind, version, state, asked_by, start_at)
SELECT $1, t.now, 'now', $2, 'due', $3, t.now FROM (SELECT tranche_now() AS now) t
RETURNING ` + occurrenceColumns

// RunScheduleNow starts an additional run, even of a paused schedule. The policy on overlapping runs applies.
func (s Store) RunScheduleNow(ctx context.Context, name, actor string) (now Occurrence, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		was, err := kind().Find(ctx, tx, name) // a deletion comes before or after
		if err != nil {
			return err
		}
		now, err = pg.One(ctx, tx, pgx.RowToStructByPos[Occurrence], insertOccurrenceNow, name, was.Version, pg.Plain(actor))
		if err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "schedule_run_now", Subject: name,
			After: map[string]any{"due_at": now.Due, "version": was.Version}})
	})
	return now, pg.Wrap(err, "run schedule %s now", name)
}
