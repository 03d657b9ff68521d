// Package plane computes with items: bitmaps, the graph of steps, what an outcome unlocks, and when to retry. It
// also holds SQL that several packages share.
package plane

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const planTrace = `
SELECT coalesce(max(version), 0), coalesce(max(version) FILTER (WHERE deleted_at IS NULL), 0)
FROM plan WHERE name = $1 AND ($2::text[] IS NULL OR namespace = ANY ($2))`

// AbsentPlan returns why a plan, or a version of it, does not exist.
func AbsentPlan(ctx context.Context, q pg.RowQuerier, name string, version int) error {
	var ever, newest int
	if err := q.QueryRow(ctx, planTrace, name, workqueue.Namespaces(ctx)).Scan(&ever, &newest); err != nil {
		return fmt.Errorf("find plan %s: %w", name, err)
	}
	switch {
	case ever == 0:
		return fmt.Errorf("plan %q: %w", name, workqueue.ErrNotFound)
	case newest == 0:
		return fmt.Errorf("plan %q was deleted: %w", name, workqueue.ErrNotFound)
	default:
		return fmt.Errorf("version %d of plan %q, whose newest is %d: %w", version, name, newest, workqueue.ErrNotFound)
	}
}

// LockStepsOfCanary locks the steps of a run, like claims, reruns and cancels: nothing becomes ready or claimed.
const LockStepsOfCanary = `SELECT step FROM run_step WHERE run_id = $1 ORDER BY step FOR NO KEY UPDATE`

// View is one step to be read, or all steps.
type View struct {
	Step  workqueue.Step // -1: all
	Reads []workqueue.Step
}

// OverAll means all steps together.
const OverAll = workqueue.Step(-1)

// View returns what must be read for a step by name, or for all steps.
func (g *Graph) View(name string) (View, error) {
	v := View{Step: OverAll}
	for i := range g.Steps {
		if name == "" {
			v.Reads = append(v.Reads, workqueue.Step(i))
		} else if g.Steps[i].Name == name {
			return View{Step: workqueue.Step(i), Reads: append(slices.Clone(g.Before[i]), workqueue.Step(i))}, nil
		}
	}
	if name == "" {
		return v, nil
	}
	names := make([]string, len(g.Steps))
	for i := range g.Steps {
		names[i] = g.Steps[i].Name
	}
	return v, fmt.Errorf("it has no step %q, but %s: %w", name, strings.Join(names, ", "), workqueue.ErrNotFound)
}

// NoStep is the step of a missing item.
const NoStep = -1
