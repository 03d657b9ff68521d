package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// contestant is one way to do the work, measured in a fresh database.
type contestant interface {
	name() string
	size() int // items of a round
	measure(context.Context) (sample, error)
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

// tuner is a contestant that first finds its best settings, before measurement.
type tuner interface {
	tune(context.Context) error
}

// settled is a contestant that reports its settings after measurement.
type settled interface{ setup() string }

func chooseContestants(cfg config, pg *cluster) []contestant {
	input := items{n: cfg.items, random: cfg.keys == "random"}
	own := tranches(cfg, pg, input)
	all := []contestant{floor{pg, input}, floorRaw{pg, input}, own[0], own[1], floorGather{floor{pg, input}}, own[2],
		&riverQueue{pg: pg, input: items{n: cfg.riverItems, random: input.random}}}
	return slices.DeleteFunc(all, func(c contestant) bool { return !cfg.wants(c.name()) })
}

// race measures all contestants round by round, after a warm-up that creates the WAL files and touches memory.
func race(ctx context.Context, pg *cluster, rounds int, list []contestant) ([]result, error) {
	results := make([]result, len(list))
	most := 0
	for i, c := range list {
		results[i].Name = c.name()
		most = max(most, c.size())
	}
	if err := prepare(ctx, pg, list, min(most, warmItems)); err != nil {
		return nil, err
	}
	for round := range rounds {
		for i, c := range list {
			s, err := c.measure(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", c.name(), round+1, err)
			}
			results[i].Samples = append(results[i].Samples, s)
			fmt.Fprintf(os.Stderr, "round %d  %-10s %9.0f items/s  %.2f s\n", round+1, c.name(), s.Rate, s.Seconds)
		}
	}
	for i, c := range list {
		if c, ok := c.(settled); ok {
			results[i].Setup = c.setup()
		}
	}
	return results, nil
}

// warmItems suffice to create the WAL files.
const warmItems = 1_000_000

func prepare(ctx context.Context, pg *cluster, list []contestant, warm int) error {
	for _, c := range list {
		if t, ok := c.(tuner); ok {
			if err := t.tune(ctx); err != nil {
				return fmt.Errorf("tune %s: %w", c.name(), err)
			}
		}
	}
	if warm == 0 {
		return nil
	}
	if _, err := (floor{pg, items{n: warm}}).measure(ctx); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	return nil
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
	label string
	of    work
	plan  string // saved first
	parts int    // of each item
	how   string // empty: as the node reports
	cfg   config
	pg    *cluster
	input items
}

// tranches are a plain endpoint, a flow of three stages, and a plan of three independent steps.
func tranches(cfg config, pg *cluster, input items) []contestant {
	return []contestant{
		&tranche{label: "tranche", of: work{endpoint: echoEndpoint}, parts: 1, cfg: cfg, pg: pg, input: input},
		&tranche{label: "flow", of: work{endpoint: flowEndpoint}, parts: 1, cfg: cfg, pg: pg, input: input,
			how: "as tranche; an endpoint of three stages asks another of the same service twice for each item"},
		&tranche{label: "gather", of: work{plan: "gather"}, plan: gatherPlan, parts: len(gatherEndpoints()), cfg: cfg, pg: pg,
			input: input, how: "as tranche; three endpoints of one service, a part of each for every item"},
	}
}

func (t *tranche) name() string  { return t.label }
func (t *tranche) size() int     { return t.input.n }
func (t *tranche) setup() string { return t.how }

func (t *tranche) measure(ctx context.Context) (s sample, err error) {
	b, err := openBed(ctx, t.cfg, t.pg)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	t.how = cmp.Or(t.how, b.String())
	if t.plan != "" {
		if err := b.putPlan(ctx, t.plan); err != nil {
			return s, err
		}
		if _, err := b.complete(ctx, t.of, items{n: bedWarmItems}); err != nil {
			return s, err
		}
	}
	watch, err := t.pg.startWatch(ctx, processes{
		"node": b.node.PID(), "service": b.service.PID(), "client": os.Getpid(),
	})
	if err != nil {
		return s, err
	}
	peaks := watchPeaks(b.node.PID(), b.storeDir())
	done, err := b.complete(ctx, t.of, t.input)
	if err != nil {
		peaks.stop()
		return s, err
	}
	s, err = watch.stop(ctx, t.input.n)
	s.Intake = done.loaded.Sub(watch.begun).Seconds()
	s.PeakAnon, s.PeakStore = peaks.stop()
	if err != nil {
		return s, err
	}
	return s, b.check(ctx, done.run, t.parts, t.input.n)
}

func gatherEndpoints() []string { return []string{"accounts", "transactions", "branches"} }

// gatherPlan gets a part of each item from three endpoints, concurrently.
const gatherPlan = `name: gather
steps:
- endpoint: accounts
- endpoint: transactions
- endpoint: branches
`

func (b *bed) putPlan(ctx context.Context, plan string) error {
	_, err := b.command(ctx, strings.NewReader(plan), "plan", "apply", "-")
	return err
}
