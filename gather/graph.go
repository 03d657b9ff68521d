package gather

import (
	"fmt"
	"slices"
	"strings"
)

// checkGraph checks that step names are unique, that needs name steps of the plan, each once, and that no step waits
// for itself, however far around.
func checkGraph(steps []Step) error {
	index := make(map[string]int, len(steps))
	for i := range steps {
		name := steps[i].Name
		if first, taken := index[name]; taken {
			return fieldError(stepField(i)+".name", "%q is also the name of %s", name, stepField(first))
		}
		index[name] = i
	}
	for i := range steps {
		for n, need := range steps[i].Needs {
			field := fmt.Sprintf("%s.needs[%d]", stepField(i), n)
			if _, known := index[need]; !known {
				return fieldError(field, "there is no step %q; there are %s", need, namesOf(steps))
			}
			if slices.Contains(steps[i].Needs[:n], need) {
				return fieldError(field, "%q stands twice", need)
			}
		}
	}
	if cycle := findCycle(steps, index); cycle != nil {
		return fieldError(stepField(index[cycle[0]])+".needs",
			"the steps wait for each other: %s; take one of these needs out", strings.Join(cycle, " → "))
	}
	return nil
}

func namesOf(steps []Step) string {
	names := make([]string, len(steps))
	for i := range steps {
		names[i] = steps[i].Name
	}
	return strings.Join(names, ", ")
}

// findCycle returns the names along one cycle of needs, the first of them again at the end, or nil.
func findCycle(steps []Step, index map[string]int) []string {
	finished := make([]bool, len(steps))
	var path []string
	var visit func(i int) []string
	visit = func(i int) []string {
		name := steps[i].Name
		if at := slices.Index(path, name); at >= 0 {
			return append(slices.Clone(path[at:]), name)
		}
		if finished[i] {
			return nil
		}
		path = append(path, name)
		for _, need := range steps[i].Needs {
			if cycle := visit(index[need]); cycle != nil {
				return cycle
			}
		}
		path = path[:len(path)-1]
		finished[i] = true
		return nil
	}
	for i := range steps {
		if cycle := visit(i); cycle != nil {
			return cycle
		}
	}
	return nil
}
