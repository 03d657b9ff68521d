package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/tools/demokit"
)

const (
	manySmall     = 10 // items of a small run
	manyEndpoints = 200
	manyClients   = 64
	manyAlone     = 6 * time.Second // of measuring the large run alone
	manyMost      = 3_000           // small runs alone
	manyWithin    = 10 * time.Minute
	manyTick      = time.Second
	beginWithin   = 30 * time.Second
)

// measureMany measures thousands of small runs, alone and during a large one, on nodes that share a machine.
func measureMany(ctx context.Context, cfg config, pg *cluster, rep *report) {
	t := rep.table("nodes", "small runs alone", "during the large one", "p50, p99", "large run alone, items/s",
		"meanwhile: median, worst second")
	for _, nodes := range []int{1, 2, 4} {
		pg.onBed(ctx, cfg.binary, "many", func(b *bed) {
			for range nodes - 1 {
				b.another(ctx)
			}
			b.startService()
			small := b.serve("the small runs' service", manyArgument, strconv.Itoa(manyEndpoints))
			b.others = append(b.others, small)
			events := b.watchCompletions()
			for i := range manyEndpoints { // warm up each endpoint
				demokit.Must(b.small(ctx, events, i))
			}
			begun, n := time.Now(), min(cfg.manyRuns, manyMost)
			b.post(ctx, events, n)
			t.add(append([]string{fmt.Sprint(nodes), fmt.Sprintf("%.0f/s", float64(n)/time.Since(begun).Seconds())},
				b.duringLarge(ctx, cfg, events)...)...)
		})
		fmt.Fprintf(os.Stderr, "many      %s\n", strings.Join(t.rows[len(t.rows)-1], " | "))
	}
}

// duringLarge starts the large run, measures it alone, and then with the small runs.
func (b *bed) duringLarge(ctx context.Context, cfg config, events *completions) []string {
	large := demokit.Must(b.start(ctx, work{endpoint: echoEndpoint}, items{n: cfg.manyLarge}))
	b.until(ctx, beginWithin, "the large run has begun", hasBegun, large.Run)
	demokit.Stop(backoff.Sleep(ctx, manyTick))
	alone := demokit.Must(b.rate(ctx, large.Run, manyAlone))
	begun := time.Now()
	sampling, stop := context.WithCancel(ctx)
	defer stop()
	sampled := b.sampleRate(sampling, large.Run)
	times := percentilesOf(b.post(ctx, events, cfg.manyRuns))
	rate := float64(cfg.manyRuns) / time.Since(begun).Seconds()
	stop()
	rates := <-sampled
	if done := b.number(ctx, countDone, large.Run); done >= float64(cfg.manyLarge) {
		demokit.Stop(fmt.Errorf("the large run of %d items was over before the small ones; give -many-large", cfg.manyLarge))
	}
	if len(rates) == 0 {
		demokit.Stop(errors.New("the small runs were over before a second had passed; give more of -many-runs"))
	}
	b.command(ctx, nil, "run", "cancel", large.Run)
	crowded := spreadOf(rates)
	return []string{
		fmt.Sprintf("%.0f/s", rate), fmt.Sprintf("%.2f s, %.2f s", times.p50.Seconds(), times.p99.Seconds()),
		thousands(alone), fmt.Sprintf("%s (%s), %s (%s)", thousands(crowded.median), share(crowded.median/alone),
			thousands(crowded.low), share(crowded.low/alone)),
	}
}

// rate returns a run's completed items per second over a window from now.
func (b *bed) rate(ctx context.Context, run string, window time.Duration) (rate float64, err error) {
	err = demokit.Try(func() {
		begun, before := time.Now(), b.number(ctx, countDone, run)
		demokit.Stop(backoff.Sleep(ctx, window))
		rate = (b.number(ctx, countDone, run) - before) / time.Since(begun).Seconds()
	})
	return rate, err
}

func (b *bed) sampleRate(ctx context.Context, run string) <-chan []float64 {
	sampled := make(chan []float64, 1)
	go func() {
		var rates []float64
		for {
			rate, err := b.rate(context.WithoutCancel(ctx), run, manyTick) // cancelling a query would close the connection
			if err != nil || ctx.Err() != nil {
				sampled <- rates
				return
			}
			rates = append(rates, rate)
		}
	}()
	return sampled
}

// post completes n small runs with a bounded number of clients and returns the time of each.
func (b *bed) post(ctx context.Context, events *completions, n int) (times []time.Duration) {
	ctx, cancel := context.WithTimeoutCause(ctx, manyWithin, errors.New("the small runs take too long"))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var next atomic.Int64
	var clients sync.WaitGroup
	times = make([]time.Duration, n)
	for range manyClients {
		clients.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				var err error
				if times[i], err = b.small(ctx, events, i%manyEndpoints); err != nil {
					fail(err)
				}
			}
		})
	}
	clients.Wait()
	demokit.Stop(context.Cause(ctx))
	return times
}

// small completes a small run and returns its time, from the POST to the event.
func (b *bed) small(ctx context.Context, events *completions, endpoint int) (time.Duration, error) {
	begun := time.Now()
	run, err := b.start(ctx, work{endpoint: manyEndpoint(endpoint)}, items{n: manySmall})
	if err != nil {
		return 0, err
	}
	at, err := events.wait(ctx, run.Run)
	return at.Sub(begun), err
}

type completions struct {
	mu   sync.Mutex
	came map[string]chan time.Time
}

func (b *bed) watchCompletions() *completions {
	c := &completions{came: map[string]chan time.Time{}}
	b.onCompletion(func(run string, at time.Time) {
		select {
		case c.of(run) <- at:
		default: // repeated
		}
	})
	return c
}

func (c *completions) of(run string) chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.came[run] == nil {
		c.came[run] = make(chan time.Time, 1)
	}
	return c.came[run]
}

func (c *completions) wait(ctx context.Context, run string) (at time.Time, err error) {
	select {
	case at = <-c.of(run):
	case <-ctx.Done():
		return at, fmt.Errorf("wait for run %s: %w", run, context.Cause(ctx))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.came, run)
	return at, nil
}
