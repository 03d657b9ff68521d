package main

import (
	"context"
	"fmt"
	"os"
	"slices"
)

// contestant does all the work of one way, once, in a fresh database.
type contestant interface {
	name() string
	size() int // items of a round
	measure(context.Context) (sample, error)
}

// result holds a contestant's samples, a round each.
type result struct {
	Name    string   `json:"name"`
	Setup   string   `json:"setup,omitempty"` // what was chosen for it
	Samples []sample `json:"samples"`
}

func (r result) spread(of func(sample) float64) spread {
	values := make([]float64, len(r.Samples))
	for i, s := range r.Samples {
		values[i] = of(s)
	}
	return spreadOf(values)
}

func (r result) rate() spread { return r.spread(func(s sample) float64 { return s.Rate }) }

// tuner is a contestant that looks for its best settings first, outside the clock.
type tuner interface {
	tune(context.Context) error
}

// settled is a contestant that can say, once it was measured, how it was set up.
type settled interface{ setup() string }

func chooseContestants(cfg config, pg *cluster) []contestant {
	input := items{n: cfg.items, random: cfg.keys == "random"}
	all := []contestant{
		floor{pg, input},
		floorRaw{pg, input},
		newTranche(cfg, pg, input),
		newFlow(cfg, pg, input),
		floorGather{floor{pg, input}},
		&gather{cfg, pg, input},
		newRiver(pg, items{n: cfg.riverItems, random: input.random}),
	}
	return slices.DeleteFunc(all, func(c contestant) bool { return !cfg.wants(c.name()) })
}

// race measures all contestants in turn, round after round. A first round is thrown away: it makes the WAL files and
// touches the memory that later rounds find ready.
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

// warmItems are enough to make the WAL files.
const warmItems = 1_000_000

// prepare lets each contestant find its settings, and warms the cluster up.
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

// find returns the result of a contestant, nil when it did not run.
func find(results []result, name string) *result {
	i := slices.IndexFunc(results, func(r result) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &results[i]
}
