package workqueue

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// RunChange is new settings of a run, as far as they are not nil.
type RunChange struct {
	Run       RunID
	Step      string // whose settings Settings are; may be empty where there is only one
	Settings  StepChange
	Priority  *int
	MaxFailed *string // see [FailedLimit]
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

	// A part of the items of an open run is a number when it is sealed, as for limitWhileOpen.
	setMaxFailed = `
UPDATE batchrun
SET max_failed = $2,
    failed_limit = CASE WHEN opened AND sealed_at IS NULL AND $2 LIKE '%\%' THEN NULL ELSE $3::bigint END
WHERE id = $1 RETURNING failed_limit`
)

// SetRun changes settings of a run that is under way or has ended; they count from the next claim on, and for what is
// out from its end on.
func (s *Store) SetRun(ctx context.Context, c RunChange) (out RunChanged, err error) {
	if c.Settings.empty() && c.Priority == nil && c.MaxFailed == nil {
		return out, &SettingError{"nothing to set: name a setting, like chunk or priority"}
	}
	if err := c.Settings.validate(); err != nil {
		return out, err
	}
	err = s.inTxWithin(ctx, operatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
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
	steps, err := lockSteps(ctx, tx, c.Run)
	if err != nil {
		return out, err
	}
	step, err := stepNamed(steps, c.Run, c.Step)
	if err != nil {
		return out, err
	}
	if c.Step == "" && len(steps) > 1 && !c.Settings.empty() {
		return out, &SettingError{fmt.Sprintf("run %s has several steps; say which one to set: it has %s", c.Run,
			strings.Join(stepNames(steps), ", "))}
	}
	d := &difference{before: map[string]any{}, after: map[string]any{}}
	if err := step.change(ctx, tx, c.Run, &c.Settings, d); err != nil {
		return out, err
	}
	if c.Priority != nil {
		if err := moveUp(ctx, tx, c.Run, *c.Priority); err != nil {
			return out, err
		}
	}
	runs, err := lockHolds(ctx, tx, &Control{Run: c.Run}, "")
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
	out = RunChanged{Step: step.name, Before: d.before, After: d.after, Hold: r.hold, HoldDetail: r.detail}
	if len(d.after) == 0 {
		return out, nil
	}
	return out, auditChange(ctx, tx, action{actor: c.Actor, name: "set", run: c.Run, before: d.before, after: d.after,
		detail: map[string]any{"step": step.name, "reason": plain(c.Reason)}})
}

// moveUp gives what is ready, or will be, its new place among that of other runs.
func moveUp(ctx context.Context, tx pgx.Tx, run RunID, priority int) error {
	if _, err := tx.Exec(ctx, lockPlaced, run); err != nil {
		return fmt.Errorf("lock the blocks of run %s: %w", run, err)
	}
	if _, err := tx.Exec(ctx, setTurn, run, -priority); err != nil {
		return fmt.Errorf("set the priority: %w", err)
	}
	return nil
}

func (r *runHold) maySet() error {
	switch r.state {
	case "loading":
		return &StateError{r.id, r.state, "set", "wait until it has loaded"}
	case "cancelled":
		return &StateError{r.id, r.state, "set", "start a new run"}
	}
	return nil
}

// set changes what is the run's own.
func (r *runHold) set(ctx context.Context, tx pgx.Tx, c *RunChange, d *difference) error {
	if c.Priority != nil {
		var before int
		if err := tx.QueryRow(ctx, priorityOf, r.id).Scan(&before); err != nil {
			return fmt.Errorf("read the priority: %w", err)
		}
		if _, err := tx.Exec(ctx, setPriority, r.id, *c.Priority); err != nil {
			return fmt.Errorf("set the priority: %w", err)
		}
		d.add("priority", before, *c.Priority)
	}
	if c.MaxFailed != nil {
		return r.changeThreshold(ctx, tx, *c.MaxFailed, d)
	}
	return nil
}

func (r *runHold) changeThreshold(ctx context.Context, tx pgx.Tx, maxFailed string, d *difference) error {
	limit, limited, err := FailedLimit(maxFailed, r.items)
	if err != nil {
		return err
	}
	d.add("max_failed", r.maxFailed, maxFailed)
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
func (r *runHold) setThreshold(ctx context.Context, tx pgx.Tx, actor, maxFailed string) error {
	d := &difference{}
	if err := r.changeThreshold(ctx, tx, maxFailed, d); err != nil {
		return err
	}
	if len(d.after) == 0 {
		return nil
	}
	return auditChange(ctx, tx, action{actor: actor, name: "set", run: r.id, before: d.before, after: d.after})
}
