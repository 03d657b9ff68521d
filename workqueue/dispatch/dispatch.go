// Package dispatch finds work for nodes and claims it. Claims lock the step and its endpoint, so limits and rates
// are exact over all nodes.
package dispatch

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Store finds and claims work. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// A slice of a step done by nodes that may crash its node is tried alone. delivered_at records its start, as for a
// request with a service: after the node's death it shows whether the slice was running or only waiting.
const (
	beginAlone = `
UPDATE work_slice SET delivered_at = tranche_now()
WHERE id = $1 AND session_id = $2 AND state = 'claimed'`

	triedAlone = `
SELECT p.delivered_at IS NOT NULL FROM work_slice s JOIN work_slice p ON p.id = s.parent WHERE s.id = $1`
)

// BeginAlone records that a claimed slice starts with nothing else running. False: the session has lost the slice.
func (s Store) BeginAlone(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID) (bool, error) {
	tag, err := s.db.Pool.Exec(ctx, beginAlone, id, session)
	if err != nil {
		return false, fmt.Errorf("begin slice %s alone: %w", id, err)
	}
	return tag.RowsAffected() == 1, nil
}

// TriedAlone reports whether the parent of the slice was started alone, see [Store.BeginAlone].
func (s Store) TriedAlone(ctx context.Context, id workqueue.SliceID) (tried bool, err error) {
	err = s.db.Pool.QueryRow(ctx, triedAlone, id).Scan(&tried)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, fmt.Errorf("check what came before slice %s: %w", id, err)
	}
	return tried, nil
}

const (
	// barrierDue is a condition on a run_step st of batchrun r: it has a barrier, and its needed steps have ended for all
	// items. $2 and $3 pair the steps with barriers with those that they need, directly or not.
	barrierDue = `
st.barrier AND NOT st.barrier_passed AND st.gate_since IS NULL AND r.state = 'running' AND r.sealed_at IS NOT NULL
AND NOT EXISTS (
    SELECT FROM unnest($2::smallint[], $3::smallint[]) AS u (step, need)
    JOIN work_block b ON b.run_id = st.run_id AND b.step = u.need
    WHERE u.step = st.step
      AND ` + plane.SettledCount + ` < b.size)`

	// Without a lock, so that a check without effect blocks nothing.
	barriersDue = `
SELECT EXISTS (SELECT FROM batchrun r JOIN run_step st ON st.run_id = r.id WHERE r.id = $1 AND ` + barrierDue + `)`

	// passBarriers is a statement after the locks of the steps, so it sees the rerun that they waited for. While
	// they are locked no item can lose its outcome: only a rerun removes outcomes, and it locks the steps.
	passBarriers = `
UPDATE run_step st SET barrier_passed = st.approval IS NULL,
    gate_since = CASE WHEN st.approval IS NOT NULL THEN tranche_now() END
FROM batchrun r WHERE r.id = $1 AND st.run_id = $1 AND ` + barrierDue + `
RETURNING st.step, st.barrier_passed`
)

// CheckBarriers starts the steps of a run whose needed steps have ended for all items, and returns them. A gated one
// then waits for approval: see control.Store.Approve. Any node may call it at any time. See [Store.WaitingBarriers].
func (s Store) CheckBarriers(ctx context.Context, run workqueue.RunID) (passed []workqueue.Step, err error) {
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, s.db.Pool, run)
	if err != nil {
		return nil, fmt.Errorf("check the barriers: %w", err)
	}
	steps, needs := g.BarrierNeeds()
	if len(steps) == 0 {
		return nil, nil
	}
	var due bool
	if err := s.db.Pool.QueryRow(ctx, barriersDue, run, steps, needs).Scan(&due); err != nil {
		return nil, fmt.Errorf("check the barriers of run %s: %w", run, err)
	}
	if !due {
		return nil, nil
	}
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		passed = nil
		if _, err := tx.Exec(ctx, plane.LockStepsOfCanary, run); err != nil {
			return fmt.Errorf("lock steps: %w", err)
		}
		var step workqueue.Step
		var passes bool
		return pg.Each(pg.Rows(ctx, tx, passBarriers, run, steps, needs), []any{&step, &passes}, func() {
			if passes {
				passed = append(passed, step)
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("pass the barriers of run %s: %w", run, err)
	}
	return passed, nil
}

// By run_step_barrier, if planned with data; QueryExecModeExec avoids an old cached plan.
const waitingBarriers = `
SELECT r.id FROM batchrun r
WHERE r.state = 'running' AND EXISTS (
    SELECT FROM run_step st WHERE st.run_id = r.id AND st.barrier AND NOT st.barrier_passed AND st.gate_since IS NULL)
ORDER BY r.id`

// WaitingBarriers returns the runs with a step waiting at a barrier: checks may be lost with their node.
func (s Store) WaitingBarriers(ctx context.Context) ([]workqueue.RunID, error) {
	runs, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], waitingBarriers, pgx.QueryExecModeExec)
	if err != nil {
		return nil, fmt.Errorf("find runs with barriers: %w", err)
	}
	return runs, nil
}
