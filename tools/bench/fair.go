package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/tranchehq/tranche/tools/faultyservice"
)

// fairness is how long small runs take alone, and while a large one is under way.
type fairness struct {
	Service string      `json:"service"`
	Large   int         `json:"large_items"`
	Small   int         `json:"small_items"`
	Runs    int         `json:"small_runs"`
	Alone   percentiles `json:"alone"`
	Beside  percentiles `json:"beside"`
	Rate    float64     `json:"large_items_per_second"` // while the small ones ran
}

const (
	fairSmall   = 200
	fairRuns    = 10
	fairPause   = 200 * time.Millisecond // between two small runs
	fairWarm    = 3
	smallWithin = time.Minute
)

// measureFairness starts small runs, one after the other, with default settings. What is measured is what a person
// sees: from the start of `tranche run start` until the run is completed in the database.
func measureFairness(ctx context.Context, l *lab, rep *report) error {
	for _, c := range []struct {
		name    string
		large   int
		service faultyservice.Config
	}{
		{"quick (the node is the limit)", 2_500_000, faultyservice.Config{Endpoint: "quick"}},
		{"slow (4 workers, 4,000 items/s)", 300_000, faultyservice.Config{Endpoint: "slow", Concurrency: 4,
			Load: &faultyservice.Load{PerItem: time.Millisecond}}},
	} {
		f := fairness{Service: c.name, Large: c.large, Small: fairSmall, Runs: fairRuns}
		if err := l.misbehave(c.service, false); err != nil {
			return err
		}
		if _, err := l.smallRuns(ctx, c.service.Endpoint, fairWarm); err != nil {
			return err
		}
		alone, err := l.smallRuns(ctx, c.service.Endpoint, fairRuns)
		if err != nil {
			return err
		}
		beside, err := l.beside(ctx, c.service.Endpoint, &f)
		if err != nil {
			return err
		}
		f.Alone, f.Beside = percentilesOf(alone), percentilesOf(beside)
		fmt.Fprintf(os.Stderr, "fair      %-36s alone %s, beside %s\n", c.name, f.Alone.P50.Round(time.Millisecond),
			f.Beside.P50.Round(time.Millisecond))
		rep.Fair = append(rep.Fair, f)
	}
	return nil
}

// beside measures small runs during a large one, which must outlast them.
func (l *lab) beside(ctx context.Context, endpoint string, f *fairness) (times []time.Duration, err error) {
	large, err := l.begin(ctx, endpoint, f.Large)
	if err != nil {
		return nil, err
	}
	if err := l.until(ctx, beginWithin, "the large run has begun", hasBegun, large); err != nil {
		return nil, err
	}
	before, err := l.number(ctx, countDone, large)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	if times, err = l.smallRuns(ctx, endpoint, f.Runs); err != nil {
		return nil, err
	}
	after, err := l.number(ctx, countDone, large)
	if err != nil {
		return nil, err
	}
	if after >= float64(f.Large) {
		return nil, fmt.Errorf("the large run of %d items was over before the small ones", f.Large)
	}
	f.Rate = (after - before) / time.Since(begun).Seconds()
	return times, l.cancel(ctx, large)
}

func (l *lab) smallRuns(ctx context.Context, endpoint string, n int) (times []time.Duration, err error) {
	for range n {
		begun := time.Now()
		run, err := l.begin(ctx, endpoint, fairSmall)
		if err != nil {
			return nil, err
		}
		if err := l.until(ctx, smallWithin, "the small run completes", hasCompleted, run); err != nil {
			return nil, err
		}
		times = append(times, time.Since(begun))
		if err := rest(ctx, fairPause); err != nil {
			return nil, err
		}
	}
	return times, nil
}

func (r *report) fairnesses() *table {
	t := &table{heading: []string{
		"service", "200 items alone: p50, max ms", "during a large run: p50, max ms", "the large run: items", "its items/s meanwhile",
	}}
	ms := func(p percentiles) string {
		return fmt.Sprintf("%d, %d", p.P50.Milliseconds(), p.Max.Milliseconds())
	}
	for _, f := range r.Fair {
		t.add(f.Service, ms(f.Alone), ms(f.Beside), thousands(float64(f.Large)), thousands(f.Rate))
	}
	return t
}
