package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// PlanSummary is the newest or another version of a saved plan, for lists.
type PlanSummary struct {
	Name      string     `json:"name"`
	Namespace string     `json:"namespace" doc:"that owns it"`
	Version   int        `json:"version"`
	Steps     []string   `json:"steps" nullable:"false" doc:"their names, in order"`
	Endpoints []string   `json:"endpoints" nullable:"false" doc:"those of the steps, in order; may be empty"`
	Needs     [][]string `json:"needs" nullable:"false" doc:"the steps that each of the steps needs, in order"`
	CreatedBy string     `json:"created_by"`
	CreatedAt time.Time  `json:"created_at"`
	Runs      int64      `json:"runs" doc:"runs that were started with it; in a list of plans, with any version"`
	Running   int64      `json:"running" doc:"of those, the ones that have not ended"`
}

// PlanView is one version of a plan, complete.
type PlanView struct {
	PlanSummary
	Newest int             `json:"newest" doc:"the plan's newest version"`
	Spec   json.RawMessage `json:"spec" doc:"with every setting"`
	Source string          `json:"source" doc:"the applied text"`
}

// PlanFilter selects plans or versions.
type PlanFilter struct {
	Name   string // only versions of this plan; empty: all plans, in their newest version
	After  string // only plans with names after this one
	Before int    // only versions before this one; 0: from the newest
	Limit  int    // 1 to MaxPlans; 0 means DefaultPlans
}

// The number of plans or versions in one list.
const (
	DefaultPlans = 100
	MaxPlans     = 500
)

const (
	planColumns = `p.name, p.namespace, p.version,
    ARRAY(SELECT coalesce(s->>'name', '') FROM jsonb_array_elements(p.spec->'steps') s),
    ARRAY(SELECT coalesce(s->>'endpoint', s->>'direct', '') FROM jsonb_array_elements(p.spec->'steps') s),
    (SELECT coalesce(jsonb_agg(coalesce(s.value->'needs', '[]') ORDER BY s.ordinality), '[]')
     FROM jsonb_array_elements(p.spec->'steps') WITH ORDINALITY s),
    p.created_by, p.created_at, coalesce(u.runs, 0), coalesce(u.running, 0)`

	// The primary key gives the newest version of each name; one pass over all runs counts them.
	listPlans = `
SELECT ` + planColumns + `
FROM (SELECT DISTINCT ON (name) * FROM plan WHERE deleted_at IS NULL AND name > $1
          AND ($3::text[] IS NULL OR namespace = ANY ($3))
      ORDER BY name, version DESC LIMIT $2) p
LEFT JOIN (
    SELECT plan, count(*) AS runs, count(*) FILTER (WHERE state IN ('loading', 'running')) AS running
    FROM batchrun WHERE plan_version IS NOT NULL GROUP BY plan
) u ON u.plan = p.name
ORDER BY p.name`

	versionUse = `
LEFT JOIN (
    SELECT plan_version, count(*) AS runs, count(*) FILTER (WHERE state IN ('loading', 'running')) AS running
    FROM batchrun WHERE plan = $1 AND plan_version IS NOT NULL GROUP BY plan_version
) u ON u.plan_version = p.version
`

	listPlanVersions = `
SELECT ` + planColumns + `
FROM plan p ` + versionUse + `
WHERE p.name = $1 AND p.deleted_at IS NULL AND ($2 = 0 OR p.version < $2)
    AND ($4::text[] IS NULL OR p.namespace = ANY ($4))
ORDER BY p.version DESC
LIMIT $3`

	onePlan = `
SELECT ` + planColumns + `, p.spec, p.source,
    (SELECT max(version) FROM plan WHERE name = $1 AND deleted_at IS NULL)
FROM plan p ` + versionUse + `
WHERE p.name = $1 AND p.deleted_at IS NULL AND ($2 = 0 OR p.version = $2)
    AND ($3::text[] IS NULL OR p.namespace = ANY ($3))
ORDER BY p.version DESC
LIMIT 1`
)

// Plans lists saved plans by name, or the versions of one, newest first. Deleted ones are left out. more reports
// whether others follow. The error wraps ErrNotFound if the named plan does not exist.
func (s Store) Plans(ctx context.Context, f PlanFilter) (plans []PlanSummary, more bool, err error) {
	limit := pg.Limit(f.Limit, DefaultPlans, MaxPlans)
	if !pg.ValidText(f.Name) || !pg.ValidText(f.After) {
		return nil, false, fmt.Errorf("plan %q: %w", f.Name+f.After, workqueue.ErrNotFound)
	}
	var rows pgx.Rows
	if f.Name == "" {
		rows = pg.Rows(ctx, s.db.Pool, listPlans, f.After, limit+1, workqueue.Namespaces(ctx))
	} else {
		rows = pg.Rows(ctx, s.db.Pool, listPlanVersions, f.Name, f.Before, limit+1, workqueue.Namespaces(ctx))
	}
	plans, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (PlanSummary, error) { return scanPlan(row) })
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("list plans: %w", err)
	case len(plans) == 0 && f.Name != "" && f.Before == 0:
		return nil, false, plane.AbsentPlan(ctx, s.db.Pool, f.Name, 0)
	case len(plans) > limit:
		return plans[:limit], true, nil
	}
	return plans, false, nil
}

// Plan returns one version of a saved plan; version 0 is the newest.
func (s Store) Plan(ctx context.Context, name string, version int) (*PlanView, error) {
	if !pg.ValidText(name) {
		return nil, fmt.Errorf("plan %q: %w", name, workqueue.ErrNotFound)
	}
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	rows := pg.Rows(ctx, s.db.Pool, onePlan, name, version, workqueue.Namespaces(ctx))
	view, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (*PlanView, error) {
		var v PlanView
		var err error
		v.PlanSummary, err = scanPlan(row, &v.Spec, &v.Source, &v.Newest)
		return &v, err
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, plane.AbsentPlan(ctx, s.db.Pool, name, version)
	case err != nil:
		return nil, fmt.Errorf("read plan %s: %w", name, err)
	}
	return view, nil
}

func scanPlan(row pgx.CollectableRow, more ...any) (PlanSummary, error) {
	var p PlanSummary
	err := row.Scan(append([]any{&p.Name, &p.Namespace, &p.Version, &p.Steps, &p.Endpoints, &p.Needs, &p.CreatedBy,
		&p.CreatedAt, &p.Runs, &p.Running}, more...)...)
	return p, err
}
