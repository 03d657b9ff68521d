package report

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Change is how an item of one run differs from the item with the same key in an earlier one.
type Change string

// The changes. Every item of the two runs counts in exactly one.
const (
	ChangeNewlyFailing Change = "newly_failing" // was done, has failed
	ChangeNewlyFixed   Change = "newly_fixed"   // had failed, is done
	ChangeResult       Change = "changed"       // done in both, with another result of a final step
	ChangeNone         Change = "unchanged"     // done in both, with a byte-identical result
	ChangeNotCompared  Change = "not_compared"  // done in both, but the plans share no step with a result
	ChangeStillFailing Change = "still_failing" // failed in both, for any reason
	ChangeUnfinished   Change = "unfinished"    // without an outcome in one of them
	ChangeOnlyHere     Change = "only_here"     // the earlier run has no such key
	ChangeOnlyThere    Change = "only_there"    // only the earlier run has this key
)

// Changes lists all changes, the most urgent first.
func Changes() []Change {
	return []Change{
		ChangeNewlyFailing, ChangeNewlyFixed, ChangeResult, ChangeStillFailing, ChangeUnfinished, ChangeOnlyHere,
		ChangeOnlyThere, ChangeNotCompared, ChangeNone,
	}
}

// Comparison compares a run with an earlier one, key by key. Duplicate keys are compared in order.
type Comparison struct {
	Against workqueue.RunID `json:"against"`
	Changes []ChangeCount   `json:"changes" doc:"each of the kinds, with 0 too"`
	Note    string          `json:"note,omitempty" doc:"what to keep in mind about these numbers"`
	Plans   *ComparedPlans  `json:"plans,omitempty" doc:"what is compared of runs of other plans"`

	Continues []workqueue.RunID `json:"continues,omitempty" doc:"earlier runs that count as one with this run"`
}

// ChangeCount is the items with one kind of change.
type ChangeCount struct {
	Change   Change       `json:"change" doc:"newly_failing, newly_fixed, changed and so on"`
	Items    int64        `json:"items"`
	Examples []Difference `json:"examples" doc:"the first five by key; none of what is unchanged or not_compared"`
}

// Difference is one key in both runs.
type Difference struct {
	Key    string    `json:"key"`
	Change Change    `json:"change" doc:"newly_failing, newly_fixed, changed and so on"`
	Here   *Standing `json:"here,omitempty" doc:"absent when the run does not have the key"`
	There  *Standing `json:"there,omitempty" doc:"in the earlier run"`
}

// Standing is an item's state in one run.
type Standing struct {
	Outcome   workqueue.Outcome `json:"outcome" enum:"done,failed,missing"`
	Step      string            `json:"step,omitempty" doc:"that failed it, in a run of several"`
	ErrorCode string            `json:"error_code,omitempty"`
}

const changeExamples = 5

// Compare compares a run with an earlier one, each together with the runs that it continues. It calls yield, unless
// nil, for every key of both in key order, with a value valid until yield returns. It reads pages of 4096 keys in
// constant memory: 1M items against 1M take some 15 s if their keys come in any order, and less if sorted. An error
// from yield ends it and is wrapped. The error wraps ErrNotFound if a run does not exist.
func (s Store) Compare(
	ctx context.Context, here, there workqueue.RunID, yield func(*Difference) error,
) (Comparison, error) {
	return s.CompareBefore(ctx, here, there, "", yield)
}

// CompareBefore is Compare with the results of the steps that a step needs, for its approver. The error is a
// *StepChoiceError if a run does not have the step, or it needs none.
func (s Store) CompareBefore(
	ctx context.Context, here, there workqueue.RunID, step string, yield func(*Difference) error,
) (Comparison, error) {
	c := comparing{counts: map[Change]*ChangeCount{}, yield: yield}
	left, err := s.chain(ctx, here, step)
	if err != nil {
		return Comparison{}, fmt.Errorf("compare run %s with %s: %w", here, there, err)
	}
	right, err := s.chain(ctx, there, step)
	if err != nil {
		return Comparison{}, fmt.Errorf("compare run %s with %s: %w", here, there, err)
	}
	plans := alike(left, right)
	c.outcomes = len(left.runs[0].compared) == 0
	group, ctx := errgroup.WithContext(ctx)
	left.read(ctx, group)
	right.read(ctx, group)
	group.Go(func() error { return c.merge(left, right) })
	if err := group.Wait(); err != nil {
		return Comparison{}, fmt.Errorf("compare run %s with %s: %w", here, there, err)
	}
	out := Comparison{Against: there, Plans: plans}
	for _, change := range Changes() {
		n := c.counts[change]
		if n == nil {
			n = &ChangeCount{Change: change, Examples: []Difference{}}
		}
		out.Changes = append(out.Changes, *n)
	}
	if plans != nil {
		out.Note = plans.note()
	}
	is, was := left.runs[0].state, right.runs[0].state
	if step == "" && (is != "completed" || was != "completed") {
		out.Note = strings.TrimPrefix(out.Note+"; ", "; ") + fmt.Sprintf(
			"compared before both are complete: this run is %s, the other is %s", is, was)
	}
	for _, r := range left.runs[1:] {
		out.Continues = append(out.Continues, r.run)
	}
	return out, nil
}

type comparing struct {
	counts   map[Change]*ChangeCount
	yield    func(*Difference) error
	outcomes bool // there are no results to compare
}

func (c *comparing) merge(left, right *chainedRun) error {
	for {
		here, err := left.peek()
		if err != nil {
			return err
		}
		there, err := right.peek()
		if err != nil {
			return err
		}
		if here == nil && there == nil {
			return nil
		}
		switch order := keyOrder(here, there); {
		case order < 0:
			there = nil
		case order > 0:
			here = nil
		}
		if err := c.take(here, there); err != nil {
			return err
		}
		if here != nil {
			left.next()
		}
		if there != nil {
			right.next()
		}
	}
}

func keyOrder(here, there *keyedItem) int {
	switch {
	case there == nil:
		return -1
	case here == nil:
		return 1
	default:
		return bytes.Compare(here.key, there.key)
	}
}

func (c *comparing) take(here, there *keyedItem) error {
	change := changeOf(here, there)
	if c.outcomes && change == ChangeNone {
		change = ChangeNotCompared
	}
	n := c.counts[change]
	if n == nil {
		n = &ChangeCount{Change: change, Examples: []Difference{}}
		c.counts[change] = n
	}
	n.Items++
	example := change != ChangeNone && change != ChangeNotCompared && len(n.Examples) < changeExamples
	if !example && c.yield == nil {
		return nil
	}
	d := Difference{Change: change, Here: here.standing(), There: there.standing()}
	if here != nil {
		d.Key = string(here.key)
	} else {
		d.Key = string(there.key)
	}
	if example {
		n.Examples = append(n.Examples, d)
	}
	if c.yield == nil {
		return nil
	}
	return c.yield(&d)
}

func changeOf(here, there *keyedItem) Change {
	switch {
	case there == nil:
		return ChangeOnlyHere
	case here == nil:
		return ChangeOnlyThere
	case here.outcome == workqueue.OutcomeMissing || there.outcome == workqueue.OutcomeMissing:
		return ChangeUnfinished
	case here.outcome == workqueue.OutcomeFailed && there.outcome == workqueue.OutcomeFailed:
		return ChangeStillFailing
	case here.outcome == workqueue.OutcomeFailed:
		return ChangeNewlyFailing
	case there.outcome == workqueue.OutcomeFailed:
		return ChangeNewlyFixed
	case bytes.Equal(here.result, there.result):
		return ChangeNone
	default:
		return ChangeResult
	}
}

const comparedRun = `
SELECT state, coalesce(from_outcome, ''), plan, coalesce(plan_version, 0),
       ARRAY(SELECT name FROM run_step WHERE run_id = batchrun.id ORDER BY step),
       ARRAY(SELECT endpoint FROM run_step WHERE run_id = batchrun.id ORDER BY step)
FROM batchrun WHERE id = $1`

// begin reads the run and its planes, 2 KB for 8192 items and a step.
func (r *keyedRun) begin(ctx context.Context) error {
	r.pages, r.after = make(chan []keyedItem, 1), keyPlace{twin: -1}
	err := r.store.Pool.QueryRow(ctx, comparedRun, r.run).Scan(&r.state, &r.took, &r.plan.Plan, &r.plan.Version,
		&r.plan.Steps, &r.plan.asks)
	if err := pg.NoRow(err, workqueue.ErrNotFound); err != nil {
		return err
	}
	if r.state == "loading" {
		return &workqueue.StateError{Run: r.run, State: r.state, Op: "compare", Fix: "wait until it has loaded"}
	}
	if r.steps, err = New(r.store).readOutcomeSteps(ctx, r.run, r.before); err != nil {
		return err
	}
	return r.readPlanes(ctx)
}

// ComparedPlans is two plans that differ, and what is compared: outcomes, and results of final steps in both.
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
	Version int      `json:"version,omitempty" doc:"absent: it is not saved"`
	Steps   []string `json:"steps" nullable:"false"`

	asks []string // target of each step
}

func (p *ComparedPlan) String() string {
	text := p.Plan
	if p.Version > 0 {
		text += fmt.Sprintf(" version %d", p.Version)
	}
	return text + " (" + strings.Join(p.Steps, ", ") + ")"
}

func (r *keyedRun) resultNames() []string {
	names := make([]string, len(r.steps.Results))
	for i, step := range r.steps.Results {
		names[i] = r.steps.Names[slices.Index(r.steps.All, step)]
	}
	slices.Sort(names)
	return names
}

// alike makes the runs of a comparison read their common steps in one order. Nil: the plans are the same.
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

func (p *ComparedPlans) note() string {
	text := fmt.Sprintf("the plans differ: this run is of %s, the other of %s; ", &p.Here, &p.There)
	switch {
	case p.SameSteps:
		return text + "their steps ask the same, and all results are compared"
	case len(p.Compared) == 0:
		return text + "only outcomes are compared, not results: no step that makes one has the same name in both; what " +
			"is done in both is not_compared"
	case len(p.OnlyHere)+len(p.OnlyThere) > 0:
		return text + "outcomes are compared, and the results of " + strings.Join(p.Compared, ", ") + ", not those of " +
			strings.Join(slices.Concat(p.OnlyHere, p.OnlyThere), ", ")
	}
	return text + "outcomes are compared, and the results of " + strings.Join(p.Compared, ", ") +
		", by the names of the steps"
}
