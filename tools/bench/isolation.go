package main

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"time"

	"github.com/tranchehq/tranche/tools/faultyservice"
)

// isolation is what it took to find the items that fail every chunk they are in.
type isolation struct {
	Scenario string  `json:"scenario"`
	Items    int     `json:"items"`
	Chunk    int     `json:"chunk"`
	Poison   int     `json:"poison_items"`
	Extra    float64 `json:"extra_slices"`
	Bound    int     `json:"bound_of_extra_slices"`
	Seconds  float64 `json:"seconds_to_isolate"` // from the first failure to the last
	Lost     float64 `json:"innocents_not_done"`
	Fired    int     `json:"chunks_failed"`
}

const (
	poisonItems    = 5_000
	poisonChunk    = 500 // the default
	poisonAttempts = 3   // likewise
	isolateWithin  = 90 * time.Second

	countExtra = `SELECT count(*)::float8 FROM work_slice WHERE run_id = $1 AND cause <> 'ready'`
	timeFailed = `SELECT coalesce(extract(epoch FROM max(ended_at) - min(ended_at)), 0)::float8 FROM work_slice
		WHERE run_id = $1 AND error_code IS NOT NULL`
)

type poisonCase struct {
	name     string
	endpoint string
	ordinals []int
	way      faultyservice.Way
}

func poisonCases() []poisonCase {
	ten := rand.New(rand.NewPCG(4, 2026)).Perm(poisonItems)[:10] //nolint:gosec // the same each time
	return []poisonCase{
		{"1, by an error that may pass", "poison-one", []int{1234}, faultyservice.WayError},
		{"2 side by side", "poison-two", []int{1249, 1250}, faultyservice.WayError},
		{"10 at random", "poison-ten", ten, faultyservice.WayError},
		{"1, by an error for good", "poison-refuse", []int{77}, faultyservice.WayRefuse},
		{"1, by a panic", "poison-panic", []int{4999}, faultyservice.WayPanic},
		{"1, by hanging for 1 s", "poison-hang", []int{2500}, faultyservice.WayHang},
	}
}

// measureIsolation has a run for each case, all at the same time, with default settings.
func measureIsolation(ctx context.Context, l *lab, rep *report) error {
	cases := poisonCases()
	runs := make([]string, len(cases))
	for i, c := range cases {
		err := l.misbehave(faultyservice.Config{Endpoint: c.endpoint, Timeout: time.Second, Concurrency: 4,
			Poison: &faultyservice.Poison{Ordinals: c.ordinals, Way: c.way}}, true)
		if err != nil {
			return err
		}
		if runs[i], err = l.begin(ctx, c.endpoint, poisonItems); err != nil {
			return err
		}
	}
	for i, c := range cases {
		found, err := l.isolated(ctx, c, runs[i])
		if err != nil {
			return fmt.Errorf("poison: %s: %w", c.name, err)
		}
		rep.Isolation = append(rep.Isolation, found)
	}
	fmt.Fprintf(os.Stderr, "misbehave poison is isolated\n")
	return nil
}

func (l *lab) isolated(ctx context.Context, c poisonCase, run string) (found isolation, err error) {
	if err := l.until(ctx, isolateWithin, "run "+run+" completes", hasCompleted, run); err != nil {
		return found, err
	}
	ledger, err := l.ledger(c.endpoint)
	if err != nil {
		return found, err
	}
	found = isolation{Scenario: c.name, Items: poisonItems, Chunk: poisonChunk, Poison: len(c.ordinals),
		Bound: len(c.ordinals) * (2*bits.Len(poisonChunk-1) + poisonAttempts), Fired: ledger.Fired(faultyservice.FaultPoison)}
	if found.Fired == 0 {
		return found, fmt.Errorf("the fault did not fire")
	}
	if found.Extra, err = l.number(ctx, countExtra, run); err != nil {
		return found, err
	}
	if found.Seconds, err = l.number(ctx, timeFailed, run); err != nil {
		return found, err
	}
	done, err := l.number(ctx, countDone, run)
	found.Lost = float64(poisonItems-len(c.ordinals)) - done
	return found, err
}

func (r *report) isolations() *table {
	t := &table{heading: []string{
		"poison in 5,000 items, chunks of 500", "extra slices", "a poison item", "at most", "seconds to isolate", "innocents lost",
	}}
	for _, i := range r.Isolation {
		t.add(i.Scenario, thousands(i.Extra), fmt.Sprintf("%.1f", i.Extra/float64(i.Poison)), fmt.Sprint(i.Bound/i.Poison),
			fmt.Sprintf("%.1f", i.Seconds), thousands(i.Lost))
	}
	return t
}
