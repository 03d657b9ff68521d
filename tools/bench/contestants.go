package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// contestant is one way to do the work, measured in a fresh database.
type contestant struct {
	name    string
	size    int                   // items of a round
	tune    func(context.Context) // finds the best settings, before measurement; nil: none
	measure func(context.Context) sample
	setup   func() string // reports the settings, after measurement; nil: none
}

type result struct {
	Name    string
	Setup   string // its settings
	Samples []sample
}

func (r result) spread(of func(sample) float64) spread {
	values := make([]float64, len(r.Samples))
	for i, s := range r.Samples {
		values[i] = of(s)
	}
	return spreadOf(values)
}

func (r result) rates() (rates []float64) {
	for _, s := range r.Samples {
		rates = append(rates, s.Rate)
	}
	return rates
}

func chooseContestants(cfg config, pg *cluster) []contestant {
	input := items{n: cfg.items, random: cfg.keys == "random", note: cfg.note}
	all := slices.Concat(floors(pg, input), tranches(cfg, pg, input),
		[]contestant{riverContestant(pg, items{n: cfg.riverItems, random: input.random, note: input.note})})
	slices.SortStableFunc(all, func(a, b contestant) int {
		return cmp.Compare(slices.Index(parts(), a.name), slices.Index(parts(), b.name))
	})
	return slices.DeleteFunc(all, func(c contestant) bool { return !cfg.wants(c.name) })
}

// warmItems suffice to create the WAL files.
const warmItems = 1_000_000

// race measures all contestants round by round, after a warm-up that creates the WAL files and touches memory.
func race(ctx context.Context, pg *cluster, rounds int, list []contestant) []result {
	results := make([]result, len(list))
	most := 0
	for i, c := range list {
		results[i].Name = c.name
		most = max(most, c.size)
		if c.tune != nil {
			c.tune(ctx)
		}
	}
	if most > 0 {
		floors(pg, items{n: min(most, warmItems)})[0].measure(ctx)
	}
	for round := range rounds {
		for i, c := range list {
			s := c.measure(ctx)
			results[i].Samples = append(results[i].Samples, s)
			fmt.Fprintf(os.Stderr, "round %d  %-10s %9.0f items/s  %.2f s\n", round+1, c.name, s.Rate, s.Seconds)
		}
	}
	for i, c := range list {
		if c.setup != nil {
			results[i].Setup = c.setup()
		}
	}
	return results
}

func find(results []result, name string) *result {
	i := slices.IndexFunc(results, func(r result) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &results[i]
}

// tranche measures the real program from outside: a node with its NATS server, and the echo service, as separate
// processes. The clock runs from the first byte of a CSV stream sent to the HTTP API until the completion event
// arrives. Unlike the floor, this includes parsing CSV, an index of keys, state, attempts and fences, two hops
// through JetStream's file store, JSON in the service, and the tracker.
type tranche struct {
	of    work
	plan  string // saved first
	parts int    // of each item
	how   string // empty: as the node reports
	cfg   config
	pg    *cluster
	input items
}

// tranches are a plain endpoint, the same in order, a flow of three stages, and a plan of three independent steps.
func tranches(cfg config, pg *cluster, input items) (all []contestant) {
	for name, t := range map[string]*tranche{
		"tranche": {of: work{endpoint: echoEndpoint}, parts: 1},
		"ordered": {of: work{plan: "ordered"}, plan: orderedPlan, parts: 1,
			how: "as tranche; items with the same hash of their id, of 10,000, go one at a time, in order"},
		"flow": {of: work{endpoint: flowEndpoint}, parts: 1,
			how: "as tranche; an endpoint of three stages asks another of the same service twice for each item"},
		"gather": {of: work{plan: "gather"}, plan: gatherPlan, parts: len(gatherEndpoints()),
			how: "as tranche; three endpoints of one service, a part of each for every item"},
	} {
		t.cfg, t.pg, t.input = cfg, pg, input
		all = append(all, contestant{name: name, size: input.n, measure: t.measure, setup: func() string { return t.how }})
	}
	return all
}

func (t *tranche) measure(ctx context.Context) (s sample) {
	t.pg.onBed(ctx, t.cfg.binary, "tranche", func(b *bed) {
		b.warm(ctx)
		t.how = cmp.Or(t.how, b.String())
		if t.plan != "" {
			b.applyPlan(ctx, t.plan)
			b.complete(ctx, t.of, items{n: bedWarmItems})
		}
		watch := t.pg.startWatch(ctx, processes{"node": b.node.PID(), "service": b.service.PID(), "client": os.Getpid()})
		peaks := watchPeaks(b.node.PID(), filepath.Join(b.dir, "nats"))
		defer func() { s.PeakAnon, s.PeakStore = peaks.stop() }()
		done := b.complete(ctx, t.of, t.input)
		s = watch.stop(ctx, t.input.n)
		s.Intake = done.loaded.Sub(watch.begun).Seconds()
		prove(t.parts*t.input.n, b.db.QueryRow(ctx, runProof, done.run, t.parts))
	})
	return s
}

func gatherEndpoints() []string { return []string{"accounts", "transactions", "branches"} }

// orderedPlan puts items in lanes: of a hundred thousand, each has ten.
const orderedPlan = `name: ordered
order_by: id
partitions: 10000
steps:
- endpoint: ` + echoEndpoint + `
`

// gatherPlan gets a part of each item from three endpoints, concurrently.
const gatherPlan = `name: gather
steps:
- endpoint: accounts
- endpoint: transactions
- endpoint: branches
`
