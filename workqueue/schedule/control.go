package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

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
    (SELECT count(*) FROM schedule_fire f WHERE f.schedule = s.name AND f.state IN ('due', 'queued', 'starting'))
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
UPDATE schedule_fire SET state = 'skipped', reason = 'the schedule was deleted', ended_at = tranche_now()
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
INSERT INTO schedule_fire (schedule, due_at, kind, version, state, asked_by, start_at)
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
