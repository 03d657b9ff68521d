package start

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
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// PlanText is a plan on its way into the registry. The caller has validated it.
type PlanText struct {
	Name   string
	Spec   json.RawMessage // in full, as runs keep it
	Source string          // as people wrote it; valid UTF-8 without NUL
	Newest int             // only if this is the newest version; 0: whatever that is
}

// PlanMovedError is returned for a plan that was to follow a version which is not the newest one.
type PlanMovedError struct {
	Name           string
	Wanted, Newest int // Newest is 0 when there is none
}

func (e *PlanMovedError) Error() string {
	if e.Newest == 0 {
		return fmt.Sprintf("plan %s is not on record any more, and version %d was to be followed; nothing was applied",
			e.Name, e.Wanted)
	}
	return fmt.Sprintf("the newest version of plan %s is %d, and version %d was to be followed; nothing was applied. "+
		"Look at what is new, and apply it with that", e.Name, e.Newest, e.Wanted)
}

// AppliedPlan is the outcome of putting a plan on record.
type AppliedPlan struct {
	Name      string    `json:"name"`
	Version   int       `json:"version"`
	Unchanged bool      `json:"unchanged" doc:"the newest version is the same: nothing was done"`
	Previous  int       `json:"previous,omitempty" doc:"the version that was the newest; absent when there was none"`
	CreatedBy string    `json:"created_by"`
	CreatedAt time.Time `json:"created_at"`
}

// newestPlan holds the newest row, deleted or not: those who put the same plan on record take turns. The spec is
// compared as jsonb.
const newestPlan = `
SELECT version, deleted_at IS NOT NULL, spec = $2::jsonb AND source = $3, spec, created_by, created_at
FROM plan WHERE name = $1
ORDER BY version DESC
LIMIT 1
FOR NO KEY UPDATE`

// A conflict is another who was faster.
const insertPlan = `
INSERT INTO plan (name, version, spec, source, created_by) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING
RETURNING created_at`

// ApplyTries bounds how often a version is tried that another took first.
const ApplyTries = 10

// ApplyPlan puts a plan on record under the next version of its name, with a row in the audit log. What is the same as
// the newest version, text and meaning, changes nothing. Versions are never changed and their numbers never used again,
// not after a deletion either.
func (s Store) ApplyPlan(ctx context.Context, plan PlanText, actor string) (AppliedPlan, error) {
	var out AppliedPlan
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for range ApplyTries {
			var done bool
			var err error
			if out, done, err = applyPlan(ctx, tx, plan, actor); err != nil || done {
				return err
			}
		}
		return errors.New("others keep putting it on record at the same time; apply it again")
	})
	if err != nil {
		return AppliedPlan{}, fmt.Errorf("apply plan %s: %w", plan.Name, err)
	}
	return out, nil
}

// applyPlan tries once; done is false when another was faster.
func applyPlan(ctx context.Context, tx pgx.Tx, plan PlanText, actor string) (out AppliedPlan, done bool, err error) {
	out = AppliedPlan{Name: plan.Name}
	var deleted, same bool
	var before json.RawMessage
	err = tx.QueryRow(ctx, newestPlan, plan.Name, plan.Spec, plan.Source).
		Scan(&out.Version, &deleted, &same, &before, &out.CreatedBy, &out.CreatedAt)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		deleted = true // or was never there, which is the same
	case err != nil:
		return out, false, fmt.Errorf("read its newest version: %w", err)
	case same && !deleted:
		out.Unchanged = true
		return out, true, nil
	}
	if plan.Newest > 0 && (deleted || plan.Newest != out.Version) {
		moved := &PlanMovedError{Name: plan.Name, Wanted: plan.Newest}
		if !deleted {
			moved.Newest = out.Version
		}
		return out, false, moved
	}
	change := ledger.Action{Actor: actor, Name: "plan_apply", Subject: plan.Name}
	if !deleted {
		out.Previous = out.Version
		change.Before = map[string]any{"version": out.Version, "spec": before}
	}
	out.Version++
	out.CreatedBy = pg.Plain(actor)
	err = tx.QueryRow(ctx, insertPlan, plan.Name, out.Version, plan.Spec, plan.Source, out.CreatedBy).Scan(&out.CreatedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return out, false, nil
	}
	if err != nil {
		return out, false, fmt.Errorf("insert version %d: %w", out.Version, err)
	}
	change.After = map[string]any{"version": out.Version, "spec": plan.Spec}
	return out, true, ledger.AuditChange(ctx, tx, change)
}

// DeletedPlan is a plan that was deleted.
type DeletedPlan struct {
	Name     string `json:"name"`
	Version  int    `json:"version" doc:"its newest version"`
	Versions int    `json:"versions" doc:"how many were deleted"`
}

const deletePlan = `
WITH gone AS (
    UPDATE plan SET deleted_at = tranche_now() WHERE name = $1 AND deleted_at IS NULL RETURNING version)
SELECT coalesce(max(version), 0), count(*) FROM gone`

// DeletePlan takes a plan off the record in all its versions, with a row in the audit log. Runs keep what they started
// with, and the plan may be applied again, under the next version. The error wraps ErrNotFound when there is none.
func (s Store) DeletePlan(ctx context.Context, name, actor string) (DeletedPlan, error) {
	out := DeletedPlan{Name: name}
	if !pg.ValidText(name) {
		return out, fmt.Errorf("plan %q: %w", name, workqueue.ErrNotFound)
	}
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, deletePlan, name).Scan(&out.Version, &out.Versions); err != nil {
			return fmt.Errorf("delete plan %s: %w", name, err)
		}
		if out.Versions == 0 {
			return plane.AbsentPlan(ctx, tx, name, 0)
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "plan_delete", Subject: name,
			Before: map[string]any{"version": out.Version, "versions": out.Versions}})
	})
	return out, err
}
