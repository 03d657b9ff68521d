package start

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// OverdueRun is an open run that was not sealed in time.
type OverdueRun struct {
	Run       workqueue.RunID
	SealBy    time.Time
	Items     int64
	OnOverdue OnOverdue // what is to be done now
	Reported  bool      // just now, and not before
	Abandoned bool      // nobody has done anything with it for [AbandonedAfter]
}

const (
	// By batchrun_active: open runs are among those under way. Each is reported once.
	reportOverdue = `
UPDATE batchrun SET overdue_at = tranche_now()
WHERE state = 'running' AND opened AND sealed_at IS NULL AND overdue_at IS NULL
  AND seal_by <= (SELECT tranche_now())
RETURNING id, seal_by, items, on_overdue, generation`

	// What a leader has reported and not brought to its end. All that is done with a run stands in the audit log, of
	// which nothing goes while the run is under way. While its backlog is worked on somebody needs it.
	leftOverdue = `
SELECT id, seal_by, items, CASE WHEN on_overdue = 'report' THEN 'cancel' ELSE on_overdue END, on_overdue = 'report'
FROM batchrun
WHERE state = 'running' AND opened AND sealed_at IS NULL AND overdue_at IS NOT NULL
  AND (on_overdue <> 'report' OR hold IS NULL AND overdue_at < tranche_now() - $1::interval
       AND NOT EXISTS (SELECT FROM audit_log a
                       WHERE a.run_id = batchrun.id AND a.at >= tranche_now() - $1::interval)
       AND NOT EXISTS (SELECT FROM work_slice w
                       WHERE w.run_id = batchrun.id AND w.state = 'recorded'
                           AND w.ended_at >= tranche_now() - $1::interval))
ORDER BY id`
)

// ReportOverdue notes which open runs were not sealed in time, each once, with an event; and returns them together with
// those that were noted before and are still to be sealed or cancelled, also for being abandoned. Leader work: whoever
// calls it seals or cancels them as they say.
func (s Store) ReportOverdue(ctx context.Context, lease workqueue.Lease) ([]OverdueRun, error) {
	var out []OverdueRun
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = overdueRuns(ctx, tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("report runs that were not sealed in time: %w", err)
	}
	return out, nil
}

func overdueRuns(ctx context.Context, tx pgx.Tx) (out []OverdueRun, err error) {
	rows := pg.Rows(ctx, tx, reportOverdue)
	var o OverdueRun
	var gens []workqueue.Generation
	var gen workqueue.Generation
	_, err = pgx.ForEachRow(rows, []any{&o.Run, &o.SealBy, &o.Items, &o.OnOverdue, &gen}, func() error {
		o.Reported = true
		out, gens = append(out, o), append(gens, gen)
		return nil
	})
	if err != nil {
		return nil, err
	}
	known := map[workqueue.RunID]bool{}
	for i := range out {
		known[out[i].Run] = true
		err := ledger.AddEvent(ctx, tx, out[i].Run, gens[i], workqueue.EventOverdue,
			map[string]any{"seal_by": out[i].SealBy, "items": out[i].Items, "on_overdue": out[i].OnOverdue})
		if err != nil {
			return nil, err
		}
	}
	rows = pg.Rows(ctx, tx, leftOverdue, AbandonedAfter)
	o = OverdueRun{}
	_, err = pgx.ForEachRow(rows, []any{&o.Run, &o.SealBy, &o.Items, &o.OnOverdue, &o.Abandoned}, func() error {
		if !known[o.Run] {
			out = append(out, o)
		}
		return nil
	})
	return out, err
}
