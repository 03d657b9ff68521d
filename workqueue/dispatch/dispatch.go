// Package dispatch is how nodes find work and claim it, under the locks of its step and its endpoint.
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

// Store is the database for who claims work. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// A slice of a step whose work nodes do themselves, and which may kill its node, is tried alone. That it is begun
// stands in delivered_at, as for a request that is in a service's hands: the slice that follows it when its node is
// gone so tells one that killed it from one that waited its turn.
const (
	beginAlone = `
UPDATE work_slice SET delivered_at = tranche_now()
WHERE id = $1 AND session_id = $2 AND state = 'claimed'`

	triedAlone = `
SELECT p.delivered_at IS NOT NULL FROM work_slice s JOIN work_slice p ON p.id = s.parent WHERE s.id = $1`
)

// BeginAlone notes that a claimed slice is begun, with nothing else at work beside it. It returns false when the slice
// is no longer the session's.
func (s Store) BeginAlone(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID) (bool, error) {
	tag, err := s.db.Pool.Exec(ctx, beginAlone, id, session)
	if err != nil {
		return false, fmt.Errorf("begin slice %s alone: %w", id, err)
	}
	return tag.RowsAffected() == 1, nil
}

// TriedAlone reports whether the slice that this one was made from was begun alone, as [Store.BeginAlone] notes.
func (s Store) TriedAlone(ctx context.Context, id workqueue.SliceID) (tried bool, err error) {
	err = s.db.Pool.QueryRow(ctx, triedAlone, id).Scan(&tried)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, fmt.Errorf("look what came before slice %s: %w", id, err)
	}
	return tried, nil
}

const (
	// barrierDue is a condition on a run_step st of batchrun r: it waits until what it needs has ended for all items, and
	// it has. $2 and $3 are the steps with barriers and, for each, those that it needs, directly or not. The blocks of
	// those are read until one is found that has not ended.
	barrierDue = `
st.barrier AND NOT st.barrier_passed AND st.gate_since IS NULL AND r.state = 'running' AND r.sealed_at IS NOT NULL
AND NOT EXISTS (
    SELECT FROM unnest($2::smallint[], $3::smallint[]) AS u (step, need)
    JOIN work_block b ON b.run_id = st.run_id AND b.step = u.need
    WHERE u.step = st.step
      AND bit_count(` + plane.SettledBits + `) < b.size)`

	// Looks without a lock, so that a check that finds nothing is in no one's way.
	barriersDue = `
SELECT EXISTS (SELECT FROM batchrun r JOIN run_step st ON st.run_id = r.id WHERE r.id = $1 AND ` + barrierDue + `)`

	// passBarriers is a statement of its own after the locks of the steps, so that it sees what a re-run did for which
	// they waited. With the steps held, no item of the run can lose its outcome: only a re-run takes one away, and it
	// holds the steps.
	passBarriers = `
UPDATE run_step st SET barrier_passed = st.approval IS NULL,
    gate_since = CASE WHEN st.approval IS NOT NULL THEN tranche_now() END
FROM batchrun r WHERE r.id = $1 AND st.run_id = $1 AND ` + barrierDue + `
RETURNING st.step, st.barrier_passed`
)

// CheckBarriers lets the steps of a run begin that wait until what they need has ended for all items, when it has, and
// returns them. One with a gate waits for someone from then on: see control.Store.Approve. Any node may call it at any
// time. See [Store.WaitingBarriers].
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
		err := pg.Each(pg.Rows(ctx, tx, passBarriers, run, steps, needs), []any{&step, &passes}, func() {
			if passes {
				passed = append(passed, step)
			}
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pass the barriers of run %s: %w", run, err)
	}
	return passed, nil
}

// By run_step_barrier, if it is planned while there is something to go through; a kept plan may be as old as the schema
// is.
const waitingBarriers = `
SELECT r.id FROM batchrun r
WHERE r.state = 'running' AND EXISTS (
    SELECT FROM run_step st WHERE st.run_id = r.id AND st.barrier AND NOT st.barrier_passed AND st.gate_since IS NULL)
ORDER BY r.id`

// WaitingBarriers returns the runs of which a step waits until what it needs has ended for all items, for whoever sees
// to it that nothing is overlooked: the checks that nodes make by themselves may be lost with them.
func (s Store) WaitingBarriers(ctx context.Context) ([]workqueue.RunID, error) {
	runs, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], waitingBarriers, pgx.QueryExecModeExec)
	if err != nil {
		return nil, fmt.Errorf("look for runs with barriers: %w", err)
	}
	return runs, nil
}
