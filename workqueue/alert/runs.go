package alert

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// MaxRuns bounds what a look reads of runs, and of completions.
const MaxRuns = 20_000

// Run is a run under way of which there may be something to tell.
type Run struct {
	ID        workqueue.RunID
	Name      string
	Plan      string
	Endpoints []string
	Items     int64

	Hold       string // operator, threshold, guard or canary; empty: it is not held
	HoldDetail string
	HeldAt     *time.Time
	HeldBy     string
	Gate       string // steps that wait for somebody to approve them; empty: none
	GateSince  *time.Time
	NotBy      string     // who must not
	SealBy     *time.Time // of one that should have been sealed by now
	Schedule   string     // of one that should end in time
	DoneBy     *time.Time
	Late       string // what was done since it did not
}

// Completion is a run that has completed.
type Completion struct {
	Event      string // its id, the same for whoever hears of it
	Run        workqueue.RunID
	Name       string
	Plan       string
	Endpoints  []string
	Items      int64
	Done       int64
	Failed     int64
	At         time.Time
	Generation workqueue.Generation
}

const (
	// batchrun_active; the fire of a run by schedule_fire_run.
	activeRuns = `
SELECT r.id, coalesce(r.name, ''), r.plan, array(SELECT DISTINCT s.endpoint FROM run_step s WHERE s.run_id = r.id),
    r.items, coalesce(r.hold, ''), left(r.hold_detail, 500), r.held_at, r.held_by,
    coalesce(g.name, ''), g.gate_since, CASE WHEN g.other THEN r.created_by ELSE '' END,
    CASE WHEN r.opened AND r.sealed_at IS NULL AND r.seal_by <= tranche_now() THEN r.seal_by END,
    coalesce(f.schedule, ''), f.done_by, coalesce(f.late, '')
FROM batchrun r LEFT JOIN LATERAL (
    SELECT schedule, done_by, late FROM schedule_fire f
    WHERE f.run_id = r.id AND f.state = 'started' AND f.done_by IS NOT NULL ORDER BY f.due_at DESC LIMIT 1) f ON true
LEFT JOIN LATERAL (
    SELECT string_agg(st.name, ', ' ORDER BY st.step) AS name, min(st.gate_since) AS gate_since,
        bool_or(st.approval = 'other') AS other
    FROM run_step st
    WHERE st.run_id = r.id AND st.barrier AND NOT st.barrier_passed AND st.gate_since IS NOT NULL) g ON true
WHERE r.state = 'running' AND (r.hold IS NOT NULL OR g.name IS NOT NULL OR f.done_by IS NOT NULL
    OR (r.opened AND r.sealed_at IS NULL AND r.seal_by <= tranche_now()))
ORDER BY r.id LIMIT $1`

	// run_event_completed. A run that was run again since has other counts now; those of the event stand in it.
	completions = `
SELECT e.id::text, e.run_id, coalesce(r.name, ''), r.plan,
    array(SELECT DISTINCT s.endpoint FROM run_step s WHERE s.run_id = r.id), r.items,
    coalesce((e.payload->>'done')::bigint, r.done, 0), coalesce((e.payload->>'failed')::bigint, r.failed, 0), e.at,
    e.generation
FROM run_event e JOIN batchrun r ON r.id = e.run_id
WHERE e.kind = 'completed' AND e.at >= $1
ORDER BY e.at, e.id LIMIT $2`

	labelRuns = `
SELECT r.id, r.plan, array(SELECT DISTINCT s.endpoint FROM run_step s WHERE s.run_id = r.id)
FROM batchrun r WHERE r.id = ANY ($1)`

	standing = `
SELECT DISTINCT subject FROM alert_condition WHERE kind = $1 AND ended_at IS NULL AND NOT happened`
)

// Runs returns runs under way that are held, were not sealed in time, or are to end in time.
func (s Store) Runs(ctx context.Context) ([]Run, error) {
	runs, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[Run], activeRuns, MaxRuns)
	if err != nil {
		return nil, fmt.Errorf("read runs for alerts: %w", err)
	}
	return runs, nil
}

// Completions returns what has completed since a time.
func (s Store) Completions(ctx context.Context, since time.Time) ([]Completion, error) {
	done, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[Completion], completions, since, MaxRuns)
	if err != nil {
		return nil, fmt.Errorf("read completions for alerts: %w", err)
	}
	return done, nil
}

// Label is what a run is of.
type Label struct {
	Run       workqueue.RunID
	Plan      string
	Endpoints []string
}

// Labels says what runs are of.
func (s Store) Labels(ctx context.Context, runs []workqueue.RunID) (map[workqueue.RunID]Label, error) {
	labels := map[workqueue.RunID]Label{}
	if len(runs) == 0 {
		return labels, nil
	}
	all, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[Label], labelRuns, runs)
	if err != nil {
		return nil, fmt.Errorf("read what runs are of: %w", err)
	}
	for _, l := range all {
		labels[l.Run] = l
	}
	return labels, nil
}

// Standing returns the subjects of a kind of which a rule has seen that it holds.
func (s Store) Standing(ctx context.Context, kind string) (map[string]bool, error) {
	subjects, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[string], standing, kind)
	if err != nil {
		return nil, fmt.Errorf("read what alerts have seen: %w", err)
	}
	held := map[string]bool{}
	for _, subject := range subjects {
		held[subject] = true
	}
	return held, nil
}

// Now returns the database's time.
func (s Store) Now(ctx context.Context) (now time.Time, err error) {
	if err := s.db.Pool.QueryRow(ctx, databaseTime).Scan(&now); err != nil {
		return now, fmt.Errorf("read the time: %w", err)
	}
	return now, nil
}

const databaseTime = `SELECT tranche_now()`
