package report

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// maxHistory bounds a history: the newest entries.
const maxHistory = 500

// HistoryEntry is one thing that happened to a run, or beside it.
type HistoryEntry struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind" enum:"action,note,event,breaker,service,alert" doc:"service: a version's first answer"`
	What string    `json:"what" doc:"the action, event, state of the breaker, service with its version, or alert"`
	Who  string    `json:"who" doc:"who did it, or the endpoint that it is about"`
	Text string    `json:"text,omitempty" doc:"the note, the reason, or the title of the alert"`
}

// The audit log and events by their indexes of runs, breakers by endpoint_change_endpoint, services by the slices of
// the run. Of messages of alerts there are few, and retention keeps it so.
const runHistory = `
WITH run AS MATERIALIZED (
    SELECT created_at, coalesce(finished_at, tranche_now()) AS until FROM batchrun WHERE id = $1)
SELECT * FROM (
    SELECT a.at, CASE a.action WHEN 'note' THEN 'note' ELSE 'action' END AS kind, a.action AS what, a.actor AS who,
        coalesce(a.detail ->> 'reason', '') AS text
    FROM audit_log a WHERE a.run_id = $1
    UNION ALL
    SELECT e.at, 'event', e.kind, $3, 'generation ' || e.generation
    FROM run_event e WHERE e.run_id = $1 AND e.kind IN ('completed', 'overdue', 'rewound')
    UNION ALL
    SELECT c.at, 'breaker', c.after, c.endpoint, c.reason
    FROM run, (SELECT DISTINCT endpoint FROM run_step WHERE run_id = $1) s JOIN endpoint_change c USING (endpoint)
    WHERE c.what = 'breaker' AND c.at BETWEEN run.created_at AND run.until
    UNION ALL
    SELECT min(coalesce(w.ended_at, w.sent_at)), 'service', split_part(w.service, ' ', 1),
        coalesce(w.endpoint, st.endpoint), ''
    FROM work_slice w JOIN run_step st USING (run_id, step)
    WHERE w.run_id = $1 AND w.service LIKE '%@%' GROUP BY 3, 4
    UNION ALL
    SELECT m.made_at, 'alert', m.alert, m.state, coalesce(m.body ->> 'title', '')
    FROM run, alert_message m
    WHERE m.made_at >= run.created_at AND position($1::text IN m.body::text) > 0
) h
WHERE at IS NOT NULL
ORDER BY at DESC, kind, what, who
LIMIT $2`

// History returns what happened to a run, newest first. The error wraps ErrNotFound when there is no such run.
func (s Store) History(ctx context.Context, run workqueue.RunID) (all []HistoryEntry, err error) {
	err = s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		if _, err := inspect.ReadSummary(ctx, tx, run); err != nil {
			return err
		}
		all, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[HistoryEntry], runHistory, run, maxHistory, workqueue.Engine)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the history of run %s: %w", run, err)
	}
	return all, nil
}
