package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/tools/faultyservice"
)

// fixed is a setting and what it gives.
type fixed struct {
	inFlight, chunk int
	rate            float64 // items a second
}

// attempt is a run with automatic settings: what came of it, and what was found by its end.
type attempt struct {
	rate, failed    float64
	inFlight, chunk float64
	limit           float64 // items a second that throttling taught; 0: none
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
		if err := last.Kill(); err != nil {
			return err
		}
		if err := backoff.Sleep(ctx, downFor); err != nil {
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
	t := rep.table("service", "best fixed: in flight × chunk", "items/s", "automatic, first run", "ratio", "next run",
		"ratio", "to reach", "found: in flight × chunk", "failed")
	swept := rep.table("service", "fixed: in flight × chunk → items/s")
	for _, c := range append(adaptiveCases(), relearnCases()...) {
		if err := l.misbehave(c.service, false); err != nil {
			return err
		}
		// The automatic runs come first: nothing is known of the endpoint then.
		var auto [2]attempt
		for i := range auto {
			if i > 0 && c.change != nil {
				if err := c.change(ctx, l, &c); err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
			}
			var err error
			if auto[i], err = l.measureAuto(ctx, &c, i == 0); err != nil {
				return fmt.Errorf("%s, automatic: %w", c.name, err)
			}
			if i == 0 && (c.change != nil || len(c.flags) > 0) {
				auto[i].rate = 0 // it has another service, or nothing to do: not to be compared
			}
		}
		tried, best, err := l.sweep(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Fprintf(os.Stderr, "adaptive  %-36s best fixed %.0f items/s, automatic %.0f and %.0f\n", c.name, best.rate,
			auto[0].rate, auto[1].rate)
		t.add(adapted(c.name, best, auto)...)
		swept.add(c.name, strings.Join(tried, "; "))
	}
	return nil
}

// adapted is a row: the best fixed setting, and the automatic ones beside it.
func adapted(name string, best fixed, auto [2]attempt) []string {
	row := []string{name, fmt.Sprintf("%d × %d", best.inFlight, best.chunk), thousands(best.rate)}
	for _, run := range auto {
		if run.rate == 0 {
			row = append(row, "–", "–")
			continue
		}
		row = append(row, thousands(run.rate), fmt.Sprintf("%.2f", run.rate/best.rate))
	}
	found := fmt.Sprintf("%.0f × %.0f", auto[1].inFlight, auto[1].chunk)
	if auto[1].limit > 0 {
		found += fmt.Sprintf(", %s items/s", thousands(auto[1].limit))
	}
	return append(row, "0.90", found, thousands(auto[0].failed+auto[1].failed))
}

// sweep measures the fixed settings and finds the best.
func (l *lab) sweep(ctx context.Context, c testCase) (tried []string, best fixed, err error) {
	try := func(inFlight, chunk int) error {
		f := fixed{inFlight: inFlight, chunk: chunk}
		flags := []string{"--in-flight", strconv.Itoa(inFlight), "--chunk", strconv.Itoa(chunk)}
		if c.attempts > 0 {
			flags = append(flags, "--attempts", strconv.Itoa(c.attempts))
		}
		err := l.underWay(ctx, c.service.Endpoint, c.items(sweepLasts), flags, func(run string) (err error) {
			if err := backoff.Sleep(ctx, sweepSettle); err != nil {
				return err
			}
			f.rate, err = l.rate(ctx, run, sweepWindow)
			return err
		})
		if f.rate > best.rate {
			best = f
		}
		tried = append(tried, fmt.Sprintf("%d × %d → %s", inFlight, chunk, thousands(f.rate)))
		return err
	}
	for _, inFlight := range c.inFlight {
		if err := try(inFlight, c.chunk); err != nil {
			return nil, best, err
		}
	}
	inFlight := best.inFlight
	for _, chunk := range c.otherChunks {
		if err := try(inFlight, chunk); err != nil {
			return nil, best, err
		}
	}
	return tried, best, nil
}

// measureAuto has the node find its way, and then measures.
func (l *lab) measureAuto(ctx context.Context, c *testCase, first bool) (found attempt, err error) {
	flags := []string{"--in-flight", "auto", "--chunk", "auto"}
	if first {
		flags = append(flags, c.flags...)
	}
	err = l.underWay(ctx, c.service.Endpoint, c.items(learnFor+autoLasts), flags, func(run string) error {
		if err := backoff.Sleep(ctx, learnFor); err != nil {
			return err
		}
		if found.rate, err = l.rate(ctx, run, autoWindow); err != nil {
			return err
		}
		if found.failed, err = l.number(ctx, countFailed, run); err != nil {
			return err
		}
		err := l.db.QueryRow(ctx, `SELECT in_flight, coalesce(chunk, 0), coalesce(rate, 0) FROM endpoint_pace
			WHERE endpoint = $1`, c.service.Endpoint).Scan(&found.inFlight, &found.chunk, &found.limit)
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
	t := rep.table("service", "200 items alone: p50, max ms", "during a large run: p50, max ms", "the large run: items",
		"its items/s meanwhile")
	ms := func(times []time.Duration) string {
		p := percentilesOf(times)
		return fmt.Sprintf("%d, %d", p.p50.Milliseconds(), p.max.Milliseconds())
	}
	for _, c := range []struct {
		name    string
		large   int
		service faultyservice.Config
	}{
		{"quick (the node is the limit)", 2_500_000, faultyservice.Config{Endpoint: "quick"}},
		{"slow (4 workers, 4,000 items/s)", 300_000, faultyservice.Config{Endpoint: "slow", Concurrency: 4,
			Load: &faultyservice.Load{PerItem: time.Millisecond}}},
	} {
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
		beside, rate, err := l.beside(ctx, c.service.Endpoint, c.large)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "fair      %-36s alone %s, beside %s\n", c.name, percentilesOf(alone).p50,
			percentilesOf(beside).p50)
		t.add(c.name, ms(alone), ms(beside), thousands(float64(c.large)), thousands(rate))
	}
	return nil
}

// beside measures small runs during a large one, which must outlast them, and the rate of the large one meanwhile.
func (l *lab) beside(ctx context.Context, endpoint string, items int) (times []time.Duration, rate float64, err error) {
	large, err := l.begin(ctx, endpoint, items)
	if err != nil {
		return nil, 0, err
	}
	if err := l.until(ctx, beginWithin, "the large run has begun", hasBegun, large); err != nil {
		return nil, 0, err
	}
	before, err := l.number(ctx, countDone, large)
	if err != nil {
		return nil, 0, err
	}
	begun := time.Now()
	if times, err = l.smallRuns(ctx, endpoint, fairRuns); err != nil {
		return nil, 0, err
	}
	after, err := l.number(ctx, countDone, large)
	if err != nil {
		return nil, 0, err
	}
	if after >= float64(items) {
		return nil, 0, fmt.Errorf("the large run of %d items was over before the small ones", items)
	}
	return times, (after - before) / time.Since(begun).Seconds(), l.cancel(ctx, large)
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
		if err := backoff.Sleep(ctx, fairPause); err != nil {
			return nil, err
		}
	}
	return times, nil
}
