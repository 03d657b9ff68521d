package workqueue

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// graph is the steps of a run and what they need of each other. It never changes: a step needs steps with smaller
// numbers only, so their numbers are a topological order.
type graph struct {
	steps []graphStep
	lines
	after  [][]Step // of each step, those that need it, directly or through others, in order
	before [][]Step // and those that it needs, directly or through others, in order
}

// lines says whether the items of a run are put in lines.
type lines struct {
	ordered bool
	stops   bool // at a failure
}

// numbers are those of the steps.
func (g *graph) numbers() []Step {
	steps := make([]Step, len(g.steps))
	for i := range steps {
		steps[i] = Step(i)
	}
	return steps
}

// graphStep is one step of a graph.
type graphStep struct {
	name     string
	kind     Kind
	needs    []Step // directly
	inputs   []Step // of those, the ones whose parts it sees
	optional bool   // what needs it goes on without it
	barrier  bool
}

func newGraph(steps []graphStep) *graph {
	g := &graph{steps: steps, after: make([][]Step, len(steps)), before: make([][]Step, len(steps))}
	for i := range steps {
		seen := map[Step]bool{}
		for _, n := range steps[i].needs {
			seen[n] = true
			for _, far := range g.before[n] {
				seen[far] = true
			}
		}
		for n := range Step(i) {
			if seen[n] {
				g.before[i] = append(g.before[i], n)
				g.after[n] = append(g.after[n], Step(i))
			}
		}
	}
	return g
}

// single reports whether the run has one step: then nothing is ever unlocked.
func (g *graph) single() bool { return len(g.steps) == 1 }

// barriers returns the steps that wait until their needs have ended for all items.
func (g *graph) barriers() (steps []Step) {
	for i := range g.steps {
		if g.steps[i].barrier {
			steps = append(steps, Step(i))
		}
	}
	return steps
}

// sees returns the steps to which a step's parts are an input.
func (g *graph) sees(step Step) (seers []Step) {
	for _, s := range g.after[step] {
		if slices.Contains(g.steps[s].inputs, step) {
			seers = append(seers, s)
		}
	}
	return seers
}

// inputs names the steps whose parts a step sees.
func (g *graph) inputs(step Step) []StepInput {
	var all []StepInput
	for _, n := range g.steps[step].inputs {
		all = append(all, StepInput{n, g.steps[n].name})
	}
	return all
}

// graphCache keeps the graphs of the runs that a store has lately had to do with, so that no commit has to read one.
// The zero value is ready for use.
type graphCache struct {
	mu  sync.Mutex
	all map[RunID]*graph
}

// graphsKept bounds the runs in the cache. A graph takes a few hundred bytes.
const graphsKept = 10_000

func (c *graphCache) get(run RunID) *graph {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[run]
}

func (c *graphCache) put(run RunID, g *graph) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil || len(c.all) >= graphsKept {
		c.all = make(map[RunID]*graph)
	}
	c.all[run] = g
}

// What never changes of the steps of a run: a range of run_step's primary key, and whether it has lines.
const readGraph = `
SELECT name, kind, needs, inputs, optional, barrier, o.run_id IS NOT NULL, coalesce(o.stop, false)
FROM run_step st LEFT JOIN run_order o USING (run_id) WHERE st.run_id = $1 ORDER BY step`

// of returns the graph of a run. It is read once.
func (c *graphCache) of(ctx context.Context, db tracker.Querier, run RunID) (*graph, error) {
	if g := c.get(run); g != nil {
		return g, nil
	}
	rows, err := db.Query(ctx, readGraph, run)
	if err != nil {
		return nil, fmt.Errorf("read the steps of run %s: %w", run, err)
	}
	var lines lines
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s graphStep, err error) {
		return s, row.Scan(&s.name, &s.kind, &s.needs, &s.inputs, &s.optional, &s.barrier, &lines.ordered, &lines.stops)
	})
	if err != nil {
		return nil, fmt.Errorf("read the steps of run %s: %w", run, err)
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("run %s: %w", run, ErrNotFound)
	}
	g := newGraph(steps)
	g.lines = lines
	c.put(run, g)
	return g, nil
}
