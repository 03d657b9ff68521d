package plane

import (
	"slices"

	"github.com/tranchehq/tranche/workqueue"
)

// Leaf is the step with the name, or without one the only step that no other needs.
func (g *Graph) Leaf(name string) (workqueue.Step, error) {
	var all, leaves []string
	found := NoStep
	for i := range g.Steps {
		all = append(all, g.Steps[i].Name)
		if g.Steps[i].Name == name || name == "" && len(g.After[i]) == 0 {
			leaves, found = append(leaves, all[i]), i
		}
	}
	switch {
	case len(leaves) == 1:
		return workqueue.Step(found), nil
	case name == "":
		return 0, &workqueue.StepChoiceError{Steps: leaves}
	}
	return 0, &workqueue.StepChoiceError{Step: name, Steps: slices.Clip(all)}
}
