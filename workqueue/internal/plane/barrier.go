package plane

import (
	"github.com/tranchehq/tranche/workqueue"
)

// BarrierNeeds lists the steps with barriers, each beside every step that it needs.
func (g *Graph) BarrierNeeds() (steps, needs []workqueue.Step) {
	for _, barrier := range g.Barriers() {
		for _, n := range g.Before[barrier] {
			steps, needs = append(steps, barrier), append(needs, n)
		}
	}
	return steps, needs
}
