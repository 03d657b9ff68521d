package plane

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/workqueue"
)

// View is a step as it is looked at, or all of them.
type View struct {
	Step  workqueue.Step // -1: over all
	Reads []workqueue.Step
}

// OverAll stands for all steps together.
const OverAll = workqueue.Step(-1)

// View finds what has to be read for a step, by its name, or for all of them.
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
