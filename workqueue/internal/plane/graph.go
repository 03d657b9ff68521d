package plane

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Graph is the steps of a run and what they need of each other. It never changes: a step needs steps with smaller
// numbers only, so their numbers are a topological order.
type Graph struct {
	Steps []GraphStep
	Lines
	After  [][]workqueue.Step // of each step, those that need it, directly or through others, in order
	Before [][]workqueue.Step // and those that it needs, directly or through others, in order
}

// Lines says whether the items of a run are put in lines.
type Lines struct {
	Ordered bool
	Stops   bool // at a failure
}

// Numbers are those of the steps.
func (g *Graph) Numbers() []workqueue.Step {
	steps := make([]workqueue.Step, len(g.Steps))
	for i := range steps {
		steps[i] = workqueue.Step(i)
	}
	return steps
}

// GraphStep is one step of a graph.
type GraphStep struct {
	Name     string
	Kind     workqueue.Kind
	Needs    []workqueue.Step // directly
	inputs   []workqueue.Step // of those, the ones whose parts it sees
	Optional bool             // what needs it goes on without it
	barrier  bool
}

// NewGraph makes the graph of steps that stand in the order of their numbers.
func NewGraph(steps []GraphStep) *Graph {
	g := &Graph{Steps: steps, After: make([][]workqueue.Step, len(steps)), Before: make([][]workqueue.Step, len(steps))}
	for i := range steps {
		seen := map[workqueue.Step]bool{}
		for _, n := range steps[i].Needs {
			seen[n] = true
			for _, far := range g.Before[n] {
				seen[far] = true
			}
		}
		for n := range workqueue.Step(i) {
			if seen[n] {
				g.Before[i] = append(g.Before[i], n)
				g.After[n] = append(g.After[n], workqueue.Step(i))
			}
		}
	}
	return g
}

// Single reports whether the run has one step: then nothing is ever unlocked.
func (g *Graph) Single() bool { return len(g.Steps) == 1 }

// Barriers returns the steps that wait until their needs have ended for all items.
func (g *Graph) Barriers() (steps []workqueue.Step) {
	for i := range g.Steps {
		if g.Steps[i].barrier {
			steps = append(steps, workqueue.Step(i))
		}
	}
	return steps
}

// sees returns the steps to which a step's parts are an input.
func (g *Graph) sees(step workqueue.Step) (seers []workqueue.Step) {
	for _, s := range g.After[step] {
		if slices.Contains(g.Steps[s].inputs, step) {
			seers = append(seers, s)
		}
	}
	return seers
}

// Inputs names the steps whose parts a step sees.
func (g *Graph) Inputs(step workqueue.Step) []workqueue.StepInput {
	var all []workqueue.StepInput
	for _, n := range g.Steps[step].inputs {
		all = append(all, workqueue.StepInput{Step: n, Name: g.Steps[n].Name})
	}
	return all
}

// GraphCache keeps the graphs of the runs that a store has lately had to do with, so that no commit has to read one.
// The zero value is ready for use.
type GraphCache struct {
	mu  sync.Mutex
	all map[workqueue.RunID]*Graph
}

// graphsKept bounds the runs in the cache. A graph takes a few hundred bytes.
const graphsKept = 10_000

func (c *GraphCache) get(run workqueue.RunID) *Graph {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[run]
}

// Put keeps the graph of a run.
func (c *GraphCache) Put(run workqueue.RunID, g *Graph) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil || len(c.all) >= graphsKept {
		c.all = make(map[workqueue.RunID]*Graph)
	}
	c.all[run] = g
}

// What never changes of the steps of a run: a range of run_step's primary key, and whether it has lines.
const readGraph = `
SELECT name, kind, needs, inputs, optional, barrier, o.run_id IS NOT NULL, coalesce(o.stop, false)
FROM run_step st LEFT JOIN run_order o USING (run_id) WHERE st.run_id = $1 ORDER BY step`

// Of returns the graph of a run. It is read once.
func (c *GraphCache) Of(ctx context.Context, db tracker.Querier, run workqueue.RunID) (*Graph, error) {
	if g := c.get(run); g != nil {
		return g, nil
	}
	rows := pg.Rows(ctx, db, readGraph, run)
	var lines Lines
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s GraphStep, err error) {
		return s, row.Scan(&s.Name, &s.Kind, &s.Needs, &s.inputs, &s.Optional, &s.barrier, &lines.Ordered, &lines.Stops)
	})
	if err != nil {
		return nil, fmt.Errorf("read the steps of run %s: %w", run, err)
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("run %s: %w", run, workqueue.ErrNotFound)
	}
	g := NewGraph(steps)
	g.Lines = lines
	c.Put(run, g)
	return g, nil
}

// BarrierNeeds lists the steps with barriers, each beside every step that it needs.
func (g *Graph) BarrierNeeds() (steps, needs []workqueue.Step) {
	for _, barrier := range g.Barriers() {
		for _, n := range g.Before[barrier] {
			steps, needs = append(steps, barrier), append(needs, n)
		}
	}
	return steps, needs
}

// Mandatory are the steps whose failure is the item's.
func (g *Graph) Mandatory() (steps []workqueue.Step) {
	for i := range g.Steps {
		if !g.Steps[i].Optional {
			steps = append(steps, workqueue.Step(i))
		}
	}
	return steps
}

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
