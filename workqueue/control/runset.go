package control

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// RunChange is new settings of a run, as far as they are not nil.
type RunChange struct {
	Run       workqueue.RunID
	Step      string // whose settings Settings are; may be empty where there is only one
	Settings  StepChange
	Priority  *int
	MaxFailed *string // see [workqueue.FailedLimit]
	Reason    string
	Actor     string
}

// RunChanged is what became different.
type RunChanged struct {
	Step          string
	Before, After map[string]any // by setting; empty when all was as wished
	Hold          Hold           // of the run: a change does not end it
	HoldDetail    string
}

const (
	// setTurn goes with setPriority, before the run is locked.
	setTurn     = `UPDATE work_block SET turn = $2 WHERE run_id = $1 AND endpoint IS NOT NULL`
	setPriority = `UPDATE batchrun SET priority = $2 WHERE id = $1`
	priorityOf  = `SELECT priority FROM batchrun WHERE id = $1`

	// A part of the items of an open run is a number when it is sealed, as for start's limitWhileOpen.
	setMaxFailed = `
UPDATE batchrun
SET max_failed = $2,
    failed_limit = CASE WHEN opened AND sealed_at IS NULL AND $2 LIKE '%\%' THEN NULL ELSE $3::bigint END
WHERE id = $1 RETURNING failed_limit`
)

// SetRun changes settings of a run that is under way or has ended; they count from the next claim on, and for what is
// out from its end on.
func (s Store) SetRun(ctx context.Context, c RunChange) (out RunChanged, err error) {
	if c.Settings.empty() && c.Priority == nil && c.MaxFailed == nil {
		return out, &workqueue.SettingError{Detail: "nothing to set: name a setting, like chunk or priority"}
	}
	if err := c.Settings.Validate(); err != nil {
		return out, err
	}
	err = s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		out, err = setRun(ctx, tx, &c)
		return err
	})
	if err != nil {
		return RunChanged{}, fmt.Errorf("set run %s: %w", c.Run, err)
	}
	return out, nil
}

// setRun locks the steps, then slices and blocks if it must, then the run, as everyone does.
func setRun(ctx context.Context, tx pgx.Tx, c *RunChange) (out RunChanged, err error) {
	steps, err := LockSteps(ctx, tx, c.Run)
	if err != nil {
		return out, err
	}
	step, err := StepNamed(steps, c.Run, c.Step)
	if err != nil {
		return out, err
	}
	if c.Step == "" && len(steps) > 1 && !c.Settings.empty() {
		return out, &workqueue.SettingError{Detail: fmt.Sprintf("run %s has several steps; say which one to set: it has %s",
			c.Run,
			strings.Join(StepNames(steps), ", "))}
	}
	d := &ledger.Difference{Before: map[string]any{}, After: map[string]any{}}
	if err := step.Change(ctx, tx, c.Run, &c.Settings, d); err != nil {
		return out, err
	}
	if c.Priority != nil {
		if err := moveUp(ctx, tx, c.Run, *c.Priority); err != nil {
			return out, err
		}
	}
	runs, err := LockHolds(ctx, tx, &Control{Run: c.Run}, "")
	if err != nil {
		return out, err
	}
	r := runs[0]
	if err := r.maySet(); err != nil {
		return out, err
	}
	if err := r.set(ctx, tx, c, d); err != nil {
		return out, err
	}
	out = RunChanged{Step: step.Name, Before: d.Before, After: d.After, Hold: r.Hold, HoldDetail: r.Detail}
	if len(d.After) == 0 {
		return out, nil
	}
	return out, ledger.AuditChange(ctx, tx, ledger.Action{Actor: c.Actor, Name: "set", Run: c.Run, Before: d.Before,
		After:  d.After,
		Detail: map[string]any{"step": step.Name, "reason": pg.Plain(c.Reason)}})
}

// moveUp gives what is ready, or will be, its new place among that of other runs.
func moveUp(ctx context.Context, tx pgx.Tx, run workqueue.RunID, priority int) error {
	if _, err := tx.Exec(ctx, lockPlaced, run); err != nil {
		return fmt.Errorf("lock the blocks of run %s: %w", run, err)
	}
	if _, err := tx.Exec(ctx, setTurn, run, -priority); err != nil {
		return fmt.Errorf("set the priority: %w", err)
	}
	return nil
}

func (r *RunHold) maySet() error {
	switch r.state {
	case "loading":
		return &workqueue.StateError{Run: r.id, State: r.state, Op: "set", Fix: "wait until it has loaded"}
	case "cancelled":
		return &workqueue.StateError{Run: r.id, State: r.state, Op: "set", Fix: "start a new run"}
	}
	return nil
}

// set changes what is the run's own.
func (r *RunHold) set(ctx context.Context, tx pgx.Tx, c *RunChange, d *ledger.Difference) error {
	if c.Priority != nil {
		var before int
		if err := tx.QueryRow(ctx, priorityOf, r.id).Scan(&before); err != nil {
			return fmt.Errorf("read the priority: %w", err)
		}
		if _, err := tx.Exec(ctx, setPriority, r.id, *c.Priority); err != nil {
			return fmt.Errorf("set the priority: %w", err)
		}
		d.Add("priority", before, *c.Priority)
	}
	if c.MaxFailed != nil {
		return r.changeThreshold(ctx, tx, *c.MaxFailed, d)
	}
	return nil
}

func (r *RunHold) changeThreshold(ctx context.Context, tx pgx.Tx, maxFailed string, d *ledger.Difference) error {
	limit, limited, err := workqueue.FailedLimit(maxFailed, r.items)
	if err != nil {
		return err
	}
	d.Add("max_failed", r.maxFailed, maxFailed)
	r.maxFailed, r.limit = maxFailed, nil
	if limited {
		r.limit = &limit
	}
	if err := tx.QueryRow(ctx, setMaxFailed, r.id, r.maxFailed, r.limit).Scan(&r.limit); err != nil {
		return fmt.Errorf("set the threshold: %w", err)
	}
	return nil
}

// setThreshold is changeThreshold with an audit row of its own.
func (r *RunHold) setThreshold(ctx context.Context, tx pgx.Tx, actor, maxFailed string) error {
	d := &ledger.Difference{}
	if err := r.changeThreshold(ctx, tx, maxFailed, d); err != nil {
		return err
	}
	if len(d.After) == 0 {
		return nil
	}
	return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "set", Run: r.id, Before: d.Before,
		After: d.After})
}
