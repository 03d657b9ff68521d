package plane

import (
	"github.com/tranchehq/tranche/workqueue"
)

// Mandatory are the steps whose failure is the item's.
func (g *Graph) Mandatory() (steps []workqueue.Step) {
	for i := range g.Steps {
		if !g.Steps[i].Optional {
			steps = append(steps, workqueue.Step(i))
		}
	}
	return steps
}
