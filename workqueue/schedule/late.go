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

// Events of schedules. They are published on tranche.event.<kind>.
const (
	EventScheduleFailed workqueue.EventKind = "schedule.failed" // a run could not be started
	EventScheduleMissed workqueue.EventKind = "schedule.missed" // nor in time
	EventScheduleLate   workqueue.EventKind = "schedule.late"   // a run has not ended when it should have
)

// addScheduleEvent adds an event about a fire; of one without a run the event's run is zero.
func addScheduleEvent(ctx context.Context, tx pgx.Tx, kind workqueue.EventKind, key *FireKey, run workqueue.RunID,
	reason string,
) error {
	return ledger.AddEvent(ctx, tx, run, 0, kind, map[string]any{
		"schedule": key.Schedule, "due_at": key.Due, "kind": key.Kind, "reason": pg.Plain(reason),
	})
}

// LateFire is a fire whose run has not ended by the time by which it should have.
type LateFire struct {
	FireKey
	Run    workqueue.RunID
	Spec   json.RawMessage // of the schedule now
	DoneBy time.Time
	Now    time.Time
}

const (
	// Both by schedule_fire_late. A run that is gone, or has ended in time, is none that is late.
	settleInTime = `
UPDATE schedule_fire f SET late_at = tranche_now()
WHERE f.state = 'started' AND f.late_at IS NULL AND f.done_by <= tranche_now()
  AND NOT EXISTS (SELECT FROM batchrun r WHERE r.id = f.run_id
                  AND (r.state IN ('loading', 'running') OR r.finished_at > f.done_by))`

	lateFires = `
SELECT f.schedule, f.due_at, f.kind, f.run_id, s.spec, f.done_by, tranche_now()
FROM schedule_fire f JOIN schedule s ON s.name = f.schedule
WHERE f.state = 'started' AND f.late_at IS NULL AND f.done_by <= tranche_now()
ORDER BY f.done_by LIMIT $1`
)

// LateFires returns fires whose runs should have ended by now and have not, or ended late, and that nobody has looked
// at. Leader work.
func (s Store) LateFires(ctx context.Context, lease workqueue.Lease, limit int) (late []LateFire, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, settleInTime); err != nil {
			return err
		}
		rows := pg.Rows(ctx, tx, lateFires, limit)
		late, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (f LateFire, err error) {
			err = row.Scan(&f.Schedule, &f.Due, &f.Kind, &f.Run, &f.Spec, &f.DoneBy, &f.Now)
			return f, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for runs of schedules that are late: %w", err)
	}
	return late, nil
}

// Once: late_at is the fence.
const noteLate = `
UPDATE schedule_fire SET late_at = tranche_now(), late = $4
WHERE schedule = $1 AND due_at = $2 AND kind = $3 AND state = 'started' AND late_at IS NULL
RETURNING run_id`

// NoteLate notes what was done about a run that is late, once, and tells of it by an event. ok is false when another
// has noted it. Leader work.
func (s Store) NoteLate(ctx context.Context, lease workqueue.Lease, key FireKey, did string) (ok bool, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		var run workqueue.RunID
		err := tx.QueryRow(ctx, noteLate, key.Schedule, key.Due, string(key.Kind), pg.Plain(did)).Scan(&run)
		if ok = err == nil; errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		return addScheduleEvent(ctx, tx, EventScheduleLate, &key, run, did)
	})
	if err != nil {
		return false, fmt.Errorf("note that schedule %s of %s is late: %w", key.Schedule, key.Due, err)
	}
	return ok, nil
}
