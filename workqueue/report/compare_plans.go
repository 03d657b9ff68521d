package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/workqueue"
)

// ComparedPlans are the plans of two runs that do not have the same, and what of their items is compared all the same:
// the outcome of each key, and the results of the steps that make one in both runs and have the same name.
type ComparedPlans struct {
	Here      ComparedPlan `json:"here"`
	There     ComparedPlan `json:"there"`
	Compared  []string     `json:"compared" nullable:"false" doc:"steps whose results are; none: see not_compared"`
	OnlyHere  []string     `json:"only_here,omitempty" doc:"steps whose results the earlier run has not"`
	OnlyThere []string     `json:"only_there,omitempty" doc:"steps whose results only the earlier run has"`
	SameSteps bool         `json:"same_steps" doc:"they ask the same by the same steps: the settings may differ"`
}

// ComparedPlan is the plan of a run.
type ComparedPlan struct {
	Plan    string   `json:"plan"`
	Version int      `json:"version,omitempty" doc:"absent: it is not on record"`
	Steps   []string `json:"steps" nullable:"false"`

	asks []string // of each step
}

func (p *ComparedPlan) String() string {
	text := p.Plan
	if p.Version > 0 {
		text += fmt.Sprintf(" version %d", p.Version)
	}
	return text + " (" + strings.Join(p.Steps, ", ") + ")"
}

// resultNames are the names of the steps whose results are those of the run, sorted.
func (r *keyedRun) resultNames() []string {
	names := make([]string, len(r.steps.Results))
	for i, step := range r.steps.Results {
		names[i] = r.steps.Names[slices.Index(r.steps.All, step)]
	}
	slices.Sort(names)
	return names
}

// alike has all runs of a comparison read the results of the steps whose names they have in common, in one order. It
// returns what differs between the plans of the two, nil when nothing does.
func alike(here, there *chainedRun) *ComparedPlans {
	common := here.runs[0].resultNames()
	for _, r := range slices.Concat(here.runs, there.runs) {
		names := r.resultNames()
		common = slices.DeleteFunc(common, func(name string) bool { return !slices.Contains(names, name) })
	}
	for _, r := range slices.Concat(here.runs, there.runs) {
		r.compared = make([]workqueue.Step, len(common))
		for i, name := range common {
			r.compared[i] = r.steps.All[slices.Index(r.steps.Names, name)]
		}
	}
	a, b := &here.runs[0].plan, &there.runs[0].plan
	steps := slices.Equal(a.Steps, b.Steps) && slices.Equal(a.asks, b.asks)
	if a.Plan == b.Plan && a.Version == b.Version && steps {
		return nil
	}
	lacks := func(r *chainedRun) []string {
		return slices.DeleteFunc(r.runs[0].resultNames(), func(name string) bool { return slices.Contains(common, name) })
	}
	return &ComparedPlans{Here: *a, There: *b, Compared: common, OnlyHere: lacks(here), OnlyThere: lacks(there),
		SameSteps: steps}
}

// note says it in words.
func (p *ComparedPlans) note() string {
	text := fmt.Sprintf("the plans differ: this run is of %s, the other of %s; ", &p.Here, &p.There)
	switch {
	case p.SameSteps:
		return text + "their steps ask the same, and all results are compared"
	case len(p.Compared) == 0:
		return text + "outcomes are compared, and no results: no step that makes one stands in both by the same name; what " +
			"is done in both is not_compared"
	case len(p.OnlyHere)+len(p.OnlyThere) > 0:
		return text + "outcomes are compared, and the results of " + strings.Join(p.Compared, ", ") + ", not those of " +
			strings.Join(slices.Concat(p.OnlyHere, p.OnlyThere), ", ")
	}
	return text + "outcomes are compared, and the results of " + strings.Join(p.Compared, ", ") +
		", by the names of the steps"
}
