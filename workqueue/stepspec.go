package workqueue

import (
	"fmt"
	"slices"
)

// MaxSteps is how many steps a run has at the most.
const MaxSteps = 64

// Validate checks what of the step, the i-th, concerns other steps.
func (st *StepSpec) Validate(i int) error {
	for n, need := range st.Needs {
		if need < 0 || need >= i {
			return fmt.Errorf("step %d (%s) needs step %d; it can need steps before it only", i, st.Name, need)
		}
		if slices.Contains(st.Needs[:n], need) {
			return fmt.Errorf("step %d (%s) needs step %d twice", i, st.Name, need)
		}
	}
	if st.Barrier && len(st.Needs) == 0 {
		return fmt.Errorf("step %d (%s) has a barrier, and needs no step that it could wait for", i, st.Name)
	}
	for n, input := range st.Inputs {
		if !slices.Contains(st.Needs, input) || slices.Contains(st.Inputs[:n], input) {
			return fmt.Errorf("step %d (%s) sees the parts of step %d; want each of the steps that it needs once at the most",
				i, st.Name, input)
		}
	}
	return nil
}

// kind is how the work of the step is done.
func (st *StepSpec) EffectiveKind() Kind {
	if st.Kind == "" {
		return KindEndpoint
	}
	return st.Kind
}

// Smallints is a list of steps as PostgreSQL takes it: never NULL.
func Smallints(steps []int) []int16 {
	out := make([]int16, len(steps))
	for i, step := range steps {
		out[i] = int16(step)
	}
	return out
}
