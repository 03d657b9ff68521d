// Package plane is the arithmetic of items: planes of bits, the graph of steps, what an outcome unlocks, and when to
// try again.
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
FROM plan WHERE name = $1`

// AbsentPlan says why a plan, or a version of it, is not there.
func AbsentPlan(ctx context.Context, q pg.RowQuerier, name string, version int) error {
	var ever, newest int
	if err := q.QueryRow(ctx, planTrace, name).Scan(&ever, &newest); err != nil {
		return fmt.Errorf("look for plan %s: %w", name, err)
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

// LockStepsOfCanary locks the steps of a run. Claims, re-runs and cancels take the same locks: while they are held,
// nothing becomes ready or claimed.
const LockStepsOfCanary = `SELECT step FROM run_step WHERE run_id = $1 ORDER BY step FOR NO KEY UPDATE`

// View is a step as it is looked at, or all of them.
type View struct {
	Step  workqueue.Step // -1: over all
	Reads []workqueue.Step
}

// OverAll stands for all steps together.
const OverAll = workqueue.Step(-1)

// View finds what must be read for a step, by its name, or for all of them.
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

// NoStep stands for the step of a missing item.
const NoStep = -1
