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

// Graph is the steps of a run and their needs. It never changes. The numbers are a topological order.
type Graph struct {
	Steps []GraphStep
	Lines
	After  [][]workqueue.Step // for each step, those that need it, directly or not, in order
	Before [][]workqueue.Step // and those that it needs, directly or not, in order
}

// Lines says whether a run's items are in lanes.
type Lines struct {
	Ordered bool
	Stops   bool // at a failure
}

// Numbers returns the numbers of the steps.
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
	inputs   []workqueue.Step // those of them whose parts it sees
	Optional bool             // steps that need it continue without it
	barrier  bool
}

// NewGraph makes the graph of steps in number order.
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

// Barriers returns the steps that wait until their needed steps have ended for all items.
func (g *Graph) Barriers() (steps []workqueue.Step) {
	for i := range g.Steps {
		if g.Steps[i].barrier {
			steps = append(steps, workqueue.Step(i))
		}
	}
	return steps
}

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

// GraphCache caches the graphs of a store's recent runs, so that commits need not read them. The zero value is ready.
type GraphCache struct {
	mu  sync.Mutex
	all map[workqueue.RunID]*Graph
}

// graphsKept bounds the cached graphs, of a few hundred bytes each.
const graphsKept = 10_000

func (c *GraphCache) get(run workqueue.RunID) *Graph {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[run]
}

// Put caches the graph of a run.
func (c *GraphCache) Put(run workqueue.RunID, g *Graph) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil || len(c.all) >= graphsKept {
		c.all = make(map[workqueue.RunID]*Graph)
	}
	c.all[run] = g
}

// readGraph reads what never changes: a range of run_step's primary key, and whether the run has lanes.
const readGraph = `
SELECT name, kind, needs, inputs, optional, barrier, o.run_id IS NOT NULL, coalesce(o.stop, false)
FROM run_step st LEFT JOIN run_order o USING (run_id) WHERE st.run_id = $1 ORDER BY step`

// Of returns the graph of a run, reading it once.
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

// BarrierNeeds returns each step with a barrier paired with every step that it needs.
func (g *Graph) BarrierNeeds() (steps, needs []workqueue.Step) {
	for _, barrier := range g.Barriers() {
		for _, n := range g.Before[barrier] {
			steps, needs = append(steps, barrier), append(needs, n)
		}
	}
	return steps, needs
}

// Mandatory returns the steps whose failure fails the item.
func (g *Graph) Mandatory() (steps []workqueue.Step) {
	for i := range g.Steps {
		if !g.Steps[i].Optional {
			steps = append(steps, workqueue.Step(i))
		}
	}
	return steps
}

// Leaf returns the step with the name, or without one the only step that no other needs.
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

const (
	// wordCharacter matches a character next to a key that is part of a longer word: any non-ASCII one, since the
	// database decides what a letter is; and the mark of another key.
	wordCharacter = `[\w\u0001\u0080-\U0010FFFF]`

	// keyPlace is the first position of the key in the message, and behindKey the text after it.
	keyPlace  = `strpos(p.error_message, q.item_key COLLATE "default")`
	behindKey = `substr(p.error_message, ` + keyPlace + ` + char_length(q.item_key))`

	// betweenWords is the usual neighbors of keys.
	betweenWords = `' !#$%&()*+,-./:;<=>?@[\]^{|}~'`

	// KeyOfPart joins item q to a part p of a run, by the primary key regardless of statistics.
	KeyOfPart = `LEFT JOIN LATERAL (
    SELECT k.item_key FROM work_queue k WHERE k.run_id = p.run_id AND k.ordinal = p.ordinal OFFSET 0) q ON true`

	// spacedKey replaces the key between spaces.
	spacedKey = `replace(p.error_message, ' ' || q.item_key COLLATE "default" || ' ', ' {key} ')`

	// ErrorKeyed is an SQL expression on a part p to be written and its item q, for work_result.error_keyed: the start of
	// the error message with {key} in place of the item's key, where that is a separate word or quoted; NULL if it does
	// not occur. Keys of one character stay, since they are common words, and so do keys of digits and punctuation, which
	// # replaces. A key is never used as a pattern: it is replaced by a character that messages lose, one general pattern
	// finds that, and the remaining places get the key back. Since that is slow, a key only between spaces, or once
	// between neither letters nor quotes, is replaced directly.
	ErrorKeyed = `nullif(CASE
    WHEN p.error_message IS NULL OR ` + keyPlace + ` = 0 OR char_length(q.item_key) < 2
        OR q.item_key !~ '[^[:digit:][:punct:][:space:]]'
    THEN NULL
    WHEN strpos(` + spacedKey + `, q.item_key COLLATE "default") = 0 THEN left(` + spacedKey + `, 1000)
    WHEN strpos(` + betweenWords + `, substr(p.error_message, ` + keyPlace + ` - 1, 1)) > 0
        AND strpos(` + betweenWords + `, left(` + behindKey + `, 1)) > 0
        AND strpos(` + behindKey + `, q.item_key COLLATE "default") = 0
    THEN left(overlay(p.error_message PLACING '{key}' FROM ` + keyPlace + ` FOR char_length(q.item_key)), 1000)
    ELSE replace(regexp_replace(
        replace(translate(left(p.error_message, 1000), chr(1), ''), q.item_key COLLATE "default", chr(1)),
        '["''\u0060“«]\u0001["''\u0060”»]|(?<!` + wordCharacter + `)\u0001(?!` + wordCharacter + `)', '{key}', 'g'),
        chr(1), q.item_key COLLATE "default") END, left(p.error_message, 1000))`

	// messageKeyed is an SQL expression on work_result p: the start of the message with {key} for the key.
	messageKeyed = `coalesce(p.error_keyed, left(p.error_message, 1000), '')`

	// MessageAlike is messageKeyed with 0 for every digit, so that messages that differ only in digits become equal
	// early. It is compared byte by byte. replace takes a third of the time of translate.
	MessageAlike = `replace(replace(replace(replace(replace(replace(replace(replace(replace(` + messageKeyed + `,
    '1', '0'), '2', '0'), '3', '0'), '4', '0'), '5', '0'), '6', '0'), '7', '0'), '8', '0'), '9', '0') COLLATE "C"`

	// shape and shaped enclose an SQL expression to replace what differs from item to item with #. In order: quoted text,
	// UUIDs, words with a letter after a digit or 7 hexadecimal digits, and numbers, dates and times, or lists.
	shape  = `left(regexp_replace(left(`
	shaped = `, 1000),
    '"[^"]*(?:"|$)|\u0060[^\u0060]*\u0060|“[^”]*”|«[^»]*»|\Y''[^'']*''\Y' ||
    '|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}' ||
    '|\m\w*[0-9][A-Za-z_]\w*\M|\m[0-9a-fA-F]{7,}\M|[0-9]+(?:(?:[.,:/-]|, )[0-9]+)*', '#', 'g'), 200)`

	// KeyedShape is the shape of a message p.keyed made by [MessageAlike]. Only the start of a long message counts.
	KeyedShape = shape + `p.keyed COLLATE "default"` + shaped

	// KeyedGroup is MessageGroup of such a message.
	KeyedGroup = `left(md5(p.step || ':' || p.error_code || ':' || ` + KeyedShape + `), 8)`

	// MessageGroup is the ID of a group of errors on work_result p: of a step, a code and a shape.
	MessageGroup = `left(md5(p.step || ':' || p.error_code || ':' || ` + shape + messageKeyed + shaped + `), 8)`
)
