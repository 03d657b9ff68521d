package health

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
)

// FailedRun is a completed run with failed items that nobody has run again, or accepted. Failed and Items leave out
// those that are accepted; Runs and Items are those of all such runs.
type FailedRun struct {
	Run        workqueue.RunID
	Name       string
	Plan       string
	Failed     int64
	FinishedAt time.Time
	Runs       int64
	Items      int64
}

// HeldRun is a run that is paused. Runs counts those held for the same reason.
type HeldRun struct {
	Run    workqueue.RunID
	Name   string
	Plan   string
	Hold   control.Hold
	Detail string
	Since  time.Time
	By     string
	Runs   int64
}

// Gate stands for the hold of a run that is not held, and of which steps wait for somebody: Detail names them, and By
// is who must not approve; empty: anybody may.
const Gate control.Hold = "gate"

// LateSeal is an open run that was not sealed in time.
type LateSeal struct {
	Run    workqueue.RunID
	Name   string
	Plan   string
	SealBy time.Time
	Items  int64
}

const (
	// batchrun_failed finds them.
	healthFailed = `
SELECT id, coalesce(name, ''), plan, failed - accepted, finished_at, count(*) OVER (),
    (sum(failed - accepted) OVER ())::bigint
FROM batchrun
WHERE state = 'completed' AND failed > accepted AND finished_at > tranche_now() - $1::interval
ORDER BY id DESC LIMIT $2`

	// batchrun_active, and run_step_barrier for the steps that wait; a few of each reason.
	healthHeld = `
SELECT id, name, plan, hold, hold_detail, held_at, held_by, runs FROM (
    SELECT id, name, plan, hold, hold_detail, held_at, held_by,
        count(*) OVER (PARTITION BY hold) AS runs, row_number() OVER (PARTITION BY hold ORDER BY held_at, id) AS n
    FROM (
        SELECT id, coalesce(name, '') AS name, plan, hold, hold_detail, held_at, held_by
        FROM batchrun WHERE state = 'running' AND hold IS NOT NULL
        UNION ALL
        SELECT r.id, coalesce(r.name, ''), r.plan, 'gate', string_agg(st.name, ', ' ORDER BY st.step),
            min(st.gate_since), CASE WHEN bool_or(st.approval = 'other') THEN r.created_by ELSE '' END
        FROM batchrun r JOIN run_step st ON st.run_id = r.id AND st.barrier AND NOT st.barrier_passed
        WHERE r.state = 'running' AND st.gate_since IS NOT NULL GROUP BY r.id) w) h
WHERE n <= $1 ORDER BY held_at, id`

	// batchrun_active.
	healthOverdue = `
SELECT id, coalesce(name, ''), plan, seal_by, items FROM batchrun
WHERE state = 'running' AND opened AND sealed_at IS NULL AND seal_by <= tranche_now()
ORDER BY seal_by, id LIMIT $1`
)

func (f *Facts) queueRuns(b *pgx.Batch, l Limits) {
	queueRows(b, &f.Failed, healthFailed, l.Failed, l.Listed)
	queueRows(b, &f.Held, healthHeld, l.Listed)
	queueRows(b, &f.Overdue, healthOverdue, l.Listed)
}
