package main

import (
	"cmp"
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

// spread is a median with its range.
type spread struct{ median, low, high float64 }

func (r result) spread(of func(sample) float64) spread {
	values := make([]float64, len(r.Samples))
	for i, s := range r.Samples {
		values[i] = of(s)
	}
	slices.Sort(values)
	mid := len(values) / 2
	median := values[mid]
	if len(values)%2 == 0 {
		median = (values[mid-1] + values[mid]) / 2
	}
	return spread{median, values[0], values[len(values)-1]}
}

func (r result) rate() spread { return r.spread(func(s sample) float64 { return s.Rate }) }

// tuner is a contestant that looks for its best settings first, outside the clock.
type tuner interface {
	tune(context.Context) (setup string, err error)
}

func chooseContestants(cfg config, pg *cluster) ([]contestant, error) {
	input := items{n: cfg.items, random: cfg.keys == "random"}
	all := []contestant{
		floor{pg, input},
		floorPgx{pg, input},
		newTranche(cfg, pg, input),
		newRiver(pg, items{n: cfg.riverItems, random: input.random}),
	}
	return slices.DeleteFunc(all, func(c contestant) bool { return !cfg.wants(c.name()) }), nil
}

// race measures all contestants in turn, round after round. A first round is thrown away: it makes the WAL files and
// touches the memory that later rounds find ready.
func race(ctx context.Context, cfg config, pg *cluster, list []contestant) ([]result, error) {
	results := make([]result, len(list))
	for i, c := range list {
		results[i].Name = c.name()
		if t, ok := c.(tuner); ok {
			var err error
			if results[i].Setup, err = t.tune(ctx); err != nil {
				return nil, fmt.Errorf("tune %s: %w", c.name(), err)
			}
		}
	}
	if err := warmUp(ctx, cfg, pg); err != nil {
		return nil, err
	}
	for round := range cfg.rounds {
		for i, c := range list {
			s, err := c.measure(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", c.name(), round+1, err)
			}
			results[i].Samples = append(results[i].Samples, s)
			fmt.Fprintf(os.Stderr, "round %d  %-10s %9.0f items/s  %.2f s\n", round+1, c.name(), s.Rate, s.Seconds)
		}
	}
	return results, nil
}

func warmUp(ctx context.Context, cfg config, pg *cluster) error {
	if _, err := (floor{pg, items{n: cfg.items}}).measure(ctx); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	return nil
}

// find returns the result of a contestant, nil when it did not run.
func find(results []result, name string) *result {
	i := slices.IndexFunc(results, func(r result) bool { return cmp.Compare(r.Name, name) == 0 })
	if i < 0 {
		return nil
	}
	return &results[i]
}
