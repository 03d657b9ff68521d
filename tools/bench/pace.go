package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/tools/faultyservice"
)

// adaptive is one service, asked with fixed settings and with those that the node finds.
type adaptive struct {
	Service string    `json:"service"`
	Fixed   []fixed   `json:"fixed"`
	Best    fixed     `json:"best_fixed"`
	Auto    []attempt `json:"auto"` // the first run, which has to learn, and the next one
}

// fixed is a setting and what it gives.
type fixed struct {
	InFlight int     `json:"in_flight"`
	Chunk    int     `json:"chunk"`
	Rate     float64 `json:"items_per_second"`
}

// attempt is a run with automatic settings.
type attempt struct {
	Rate     float64 `json:"items_per_second"`
	Failed   float64 `json:"failed"`
	InFlight float64 `json:"in_flight"` // found by its end
	Chunk    float64 `json:"chunk"`     // 0: none was needed
	Limit    float64 `json:"rate"`      // items a second that throttling taught; 0: none
}

// Windows of the measurement. A run goes on for longer than its window, so neither its beginning nor its end is in it.
const (
	sweepSettle = 700 * time.Millisecond
	sweepWindow = 2 * time.Second
	autoWindow  = 4 * time.Second
	beginWithin = 30 * time.Second
	learnFor    = 20 * time.Second // by when a run has to be near the best, whatever the one before it met
	downFor     = 12 * time.Second
	// What runs last at the least, at the best rate that there is.
	sweepLasts = 6 * time.Second
	autoLasts  = autoWindow + 3*time.Second // beside what it has to learn
)

// testCase is a service and the settings to sweep: first the requests out at a chunk, then the chunk at the best of
// those.
type testCase struct {
	name        string
	service     faultyservice.Config
	inFlight    []int
	chunk       int
	otherChunks []int
	attempts    int      // of an item, with fixed settings
	wide        int      // chunks that the service works on at once; 0: misbehavingWide
	flags       []string // of the first automatic run
	// upset happens at the end of the first automatic run, which is not measured then; change before the next.
	upset, change func(ctx context.Context, l *lab, c *testCase) error
}

// items are so many that the service is busy for a while, however well it is asked.
func (c *testCase) items(lasts time.Duration) int {
	rate, _ := c.service.Load.Peak(bitfield.Size, cmp.Or(c.wide, misbehavingWide))
	if t := c.service.Throttle; t != nil {
		rate = min(rate, t.PerSecond)
	}
	return int(rate * lasts.Seconds())
}

// misbehavingWide is how many chunks at once the SDK hands to the model: the model is the limit.
const misbehavingWide = 1024

func adaptiveCases() []testCase {
	return []testCase{
		{
			name: "slower the more at once, best at 12",
			service: faultyservice.Config{Endpoint: "peak", Concurrency: misbehavingWide, Load: &faultyservice.Load{
				PerChunk: 10 * time.Millisecond, PerItem: 250 * time.Microsecond, Best: 12}},
			inFlight: []int{6, 12, 24, 64}, chunk: 200, otherChunks: []int{1000},
		},
		{
			name: "8 workers",
			service: faultyservice.Config{Endpoint: "pool", Concurrency: misbehavingWide, Load: &faultyservice.Load{
				PerChunk: 10 * time.Millisecond, PerItem: 300 * time.Microsecond, Servers: 8}},
			inFlight: []int{8, 64}, chunk: 200, otherChunks: []int{1000},
		},
		{
			name: "refuses over 8,000 items/s",
			service: faultyservice.Config{Endpoint: "throttle", Concurrency: 16, Throttle: &faultyservice.Throttle{
				PerSecond: 8000, Burst: 2000}, Load: &faultyservice.Load{PerChunk: 20 * time.Millisecond}},
			inFlight: []int{1, 2, 8}, chunk: 200, attempts: 100,
		},
	}
}

// relearnCases are of a plain service, whose first run ends badly, or says nothing.
func relearnCases() []testCase {
	plain := func(endpoint string) testCase {
		return testCase{
			service: faultyservice.Config{Endpoint: endpoint, Concurrency: 4, Load: &faultyservice.Load{
				PerChunk: 20 * time.Millisecond, PerItem: 2 * time.Millisecond}},
			inFlight: []int{2, 6, 12}, chunk: 500, otherChunks: []int{1000}, wide: 8,
		}
	}
	killed, canary, doubled := plain("killed"), plain("canary"), plain("doubled")
	killed.name = "4 places; killed at the end of the first run"
	killed.upset = func(ctx context.Context, l *lab, c *testCase) error {
		last := l.others[len(l.others)-1]
		if err := last.cmd.Process.Kill(); err != nil {
			return fmt.Errorf("kill %s: %w", last.name, err)
		}
		if err := rest(ctx, downFor); err != nil {
			return err
		}
		return l.misbehave(c.service, false)
	}
	canary.name = "4 places; the first run is a canary of 100"
	canary.flags = []string{"--canary", "100"}
	doubled.name = "4 places; as many again before the next run"
	doubled.change = func(_ context.Context, l *lab, c *testCase) error { return l.misbehave(c.service, false) }
	return []testCase{killed, canary, doubled}
}

func measureAdaptive(ctx context.Context, l *lab, rep *report) error {
	for _, c := range append(adaptiveCases(), relearnCases()...) {
		if err := l.misbehave(c.service, false); err != nil {
			return err
		}
		a := adaptive{Service: c.name}
		// The automatic runs come first: nothing is known of the endpoint then.
		for i := range 2 {
			if i > 0 && c.change != nil {
				if err := c.change(ctx, l, &c); err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
			}
			found, err := l.measureAuto(ctx, &c, i == 0)
			if err != nil {
				return fmt.Errorf("%s, automatic: %w", c.name, err)
			}
			if i == 0 && (c.change != nil || len(c.flags) > 0) {
				found.Rate = 0 // it has another service, or nothing to do: not to be compared
			}
			a.Auto = append(a.Auto, found)
		}
		if err := l.sweep(ctx, c, &a); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Fprintf(os.Stderr, "adaptive  %-36s best fixed %.0f items/s, automatic %.0f and %.0f\n", c.name, a.Best.Rate,
			a.Auto[0].Rate, a.Auto[1].Rate)
		rep.Adaptive = append(rep.Adaptive, a)
	}
	return nil
}

// sweep measures the fixed settings and finds the best.
func (l *lab) sweep(ctx context.Context, c testCase, a *adaptive) error {
	try := func(inFlight, chunk int) error {
		f := fixed{InFlight: inFlight, Chunk: chunk}
		flags := []string{"--in-flight", strconv.Itoa(inFlight), "--chunk", strconv.Itoa(chunk)}
		if c.attempts > 0 {
			flags = append(flags, "--attempts", strconv.Itoa(c.attempts))
		}
		err := l.underWay(ctx, c.service.Endpoint, c.items(sweepLasts), flags, func(run string) (err error) {
			if err := rest(ctx, sweepSettle); err != nil {
				return err
			}
			f.Rate, err = l.rate(ctx, run, sweepWindow)
			return err
		})
		if f.Rate > a.Best.Rate {
			a.Best = f
		}
		a.Fixed = append(a.Fixed, f)
		return err
	}
	for _, inFlight := range c.inFlight {
		if err := try(inFlight, c.chunk); err != nil {
			return err
		}
	}
	best := a.Best.InFlight
	for _, chunk := range c.otherChunks {
		if err := try(best, chunk); err != nil {
			return err
		}
	}
	return nil
}

// measureAuto has the node find its way, and then measures.
func (l *lab) measureAuto(ctx context.Context, c *testCase, first bool) (found attempt, err error) {
	flags := []string{"--in-flight", "auto", "--chunk", "auto"}
	if first {
		flags = append(flags, c.flags...)
	}
	err = l.underWay(ctx, c.service.Endpoint, c.items(learnFor+autoLasts), flags, func(run string) error {
		if err := rest(ctx, learnFor); err != nil {
			return err
		}
		if found.Rate, err = l.rate(ctx, run, autoWindow); err != nil {
			return err
		}
		if found.Failed, err = l.number(ctx, countFailed, run); err != nil {
			return err
		}
		err := l.db.QueryRow(ctx, `SELECT in_flight, coalesce(chunk, 0), coalesce(rate, 0) FROM endpoint_pace
			WHERE endpoint = $1`, c.service.Endpoint).Scan(&found.InFlight, &found.Chunk, &found.Limit)
		if err != nil || !first || c.upset == nil {
			return err
		}
		return c.upset(ctx, l, c)
	})
	return found, err
}

// underWay starts a run, calls work once its first item is done, and cancels the run.
func (l *lab) underWay(
	ctx context.Context, endpoint string, n int, flags []string, work func(run string) error,
) error {
	run, err := l.begin(ctx, endpoint, n, flags...)
	if err != nil {
		return err
	}
	if err := l.until(ctx, beginWithin, "the first item is done", hasBegun, run); err != nil {
		return err
	}
	if err := work(run); err != nil {
		return err
	}
	if err := l.cancel(ctx, run); err != nil {
		return err
	}
	// What is at the service still would be in the next run's way.
	return l.until(ctx, beginWithin, "the service is idle", `NOT EXISTS (SELECT FROM work_slice WHERE run_id = $1
		AND state IN ('claimed', 'sent'))`, run)
}

func (r *report) adaptation() *table {
	t := &table{heading: []string{
		"service", "best fixed: in flight × chunk", "items/s", "automatic, first run", "ratio", "next run", "ratio",
		"to reach", "found: in flight × chunk", "failed",
	}}
	for _, a := range r.Adaptive {
		row := []string{a.Service, fmt.Sprintf("%d × %d", a.Best.InFlight, a.Best.Chunk), thousands(a.Best.Rate)}
		failed := 0.0
		for _, run := range a.Auto {
			if row = append(row, thousands(run.Rate), fmt.Sprintf("%.2f", run.Rate/a.Best.Rate)); run.Rate == 0 {
				row[len(row)-2], row[len(row)-1] = "–", "–"
			}
			failed += run.Failed
		}
		last := a.Auto[len(a.Auto)-1]
		found := fmt.Sprintf("%.0f × %.0f", last.InFlight, last.Chunk)
		if last.Limit > 0 {
			found += fmt.Sprintf(", %s items/s", thousands(last.Limit))
		}
		t.add(append(row, "0.90", found, thousands(failed))...)
	}
	return t
}

// sweeps are all that was tried.
func (r *report) sweeps() *table {
	t := &table{heading: []string{"service", "fixed: in flight × chunk → items/s"}}
	for _, a := range r.Adaptive {
		text := ""
		for i, f := range a.Fixed {
			if i > 0 {
				text += "; "
			}
			text += fmt.Sprintf("%d × %d → %s", f.InFlight, f.Chunk, thousands(f.Rate))
		}
		t.add(a.Service, text)
	}
	return t
}

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
