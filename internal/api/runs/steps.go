package runs

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/workqueue"
)

// stepSpecs are the steps of an ordered plan as the store takes them.
func stepSpecs(plan *gather.Plan) ([]workqueue.StepSpec, error) {
	steps := make([]workqueue.StepSpec, len(plan.Steps))
	for i := range plan.Steps {
		step := &plan.Steps[i]
		config, err := kindConfig(step)
		if err != nil {
			return nil, err
		}
		steps[i] = workqueue.StepSpec{
			Name: step.Name, Endpoint: step.PaceKey(), StepSettings: step.StepSettings,
			Kind: workqueue.Kind(step.Kind()), Needs: numbersOf(plan, step.Needs),
			Inputs: numbersOf(plan, step.InputParts()), NoItem: !step.SeesItem(), Optional: step.Optional,
			Barrier: step.Barrier, Approval: step.Approval, Config: config,
		}
	}
	return steps, nil
}

// orderOf is the order of a plan's items as the store takes it; nil when they have none.
func orderOf(plan *gather.Plan) *workqueue.RunOrder {
	if !plan.Order.Set() {
		return nil
	}
	return &workqueue.RunOrder{Rule: plan.Order, Stop: plan.Stops()}
}

// numbersOf are the numbers of steps in their plan.
func numbersOf(plan *gather.Plan, names []string) []int {
	numbers := make([]int, len(names))
	for i, name := range names {
		numbers[i] = slices.IndexFunc(plan.Steps, func(s gather.Step) bool { return s.Name == name })
	}
	return numbers
}

// kindConfig is what the kind of the step has for settings of its own.
func kindConfig(step *gather.Step) (json.RawMessage, error) {
	var settings any
	switch step.Kind() {
	case gather.KindHTTP:
		settings = step.HTTP
	case gather.KindSQL:
		settings = step.SQL
	default:
		return nil, nil
	}
	config, err := json.Marshal(settings)
	if err != nil {
		return nil, fmt.Errorf("write the settings of step %s: %w", step.Name, err)
	}
	return config, nil
}
